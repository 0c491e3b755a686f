"""From the clients' updates to the next vector: clipping, rules, strategies."""
