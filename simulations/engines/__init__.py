"""How a simulation runs its clients: in one process, in groups, or as actors of Ray."""
