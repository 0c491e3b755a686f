"""Models of language: backbones that write texts, or name a class by its word."""
