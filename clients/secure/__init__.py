"""Secure aggregation at a client: preparation, masks, secrets."""
