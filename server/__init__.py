"""The server side: rounds, sampling, aggregation, checkpoint, byte ledger."""
