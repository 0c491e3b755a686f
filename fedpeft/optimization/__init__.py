"""Gradients and steps of local training."""
