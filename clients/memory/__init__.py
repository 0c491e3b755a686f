"""What a client keeps between messages and between runs."""
