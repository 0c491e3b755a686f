"""The operator's side: giving runs to a server, and bringing their folders home."""
