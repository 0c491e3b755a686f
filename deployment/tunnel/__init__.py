"""A node's way to the gateway: one connection, which the node opens."""
