"""Rounds: training, synchronous or asynchronous, evaluation, and the result of a run."""
