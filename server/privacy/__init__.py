"""The server's part of privacy: central noise, and what unheard clients have spent."""
