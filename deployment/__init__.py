"""Run the two apps on real machines: a server, and nodes with their own data."""
