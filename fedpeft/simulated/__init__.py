"""What simulations add to real clients: attacks, and devices of several speeds."""
