"""Parts of a long-running server or node: child processes, logs, locks, ports, keys, bundles."""
