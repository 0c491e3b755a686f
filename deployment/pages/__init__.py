"""The live pages of a server and of a node."""
