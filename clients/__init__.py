"""The client side: how a node answers messages of the server."""
