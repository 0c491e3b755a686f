"""The client side: what a node does with the messages it gets."""
