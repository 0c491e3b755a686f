"""Simulated federations: engines, partitioning, progress display, plots."""
