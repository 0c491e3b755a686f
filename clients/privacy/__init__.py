"""The client's budget: charged before it is spent."""
