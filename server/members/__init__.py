"""Who takes part: connected nodes, the handshake, who is asked and who is silent."""
