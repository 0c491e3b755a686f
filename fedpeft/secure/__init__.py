"""Secure aggregation: the server learns the sum of the clients' updates and no single one.

The protocol and what it protects from whom: ``docs/explanation/secure-aggregation.md``.
"""
