"""Frozen backbones: loading, families and their sites, shapes, attention."""
