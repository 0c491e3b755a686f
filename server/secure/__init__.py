"""Secure aggregation at the server: rounds, buckets, unmasking."""
