"""The machine that nodes connect to: its processes, its doors, what its operator sees."""
