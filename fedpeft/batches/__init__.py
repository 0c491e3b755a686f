"""Encoded texts and how they pass through the backbone: batches, packing, kept states."""
