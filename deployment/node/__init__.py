"""A node: its processes, checks before work, status."""
