"""The commands of ``fedpeft`` for servers, nodes and runs on them."""
