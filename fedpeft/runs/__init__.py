"""What a run leaves on disk: folder, checkpoints, records, the trained vector; and its use."""
