"""The operator's side: submit runs to a server, and copy their folders to this machine."""
