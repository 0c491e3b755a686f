"""The client's data: files, partition, description, and the node's rules for them."""
