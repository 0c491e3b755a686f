"""Simulated federations: engines, progress display, plots."""
