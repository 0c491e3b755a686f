"""Attacks on fedpeft's training by a server that knows everything except the data.

- ``canaries``: guess which examples were trained on; ``one_run``: the epsilon that this refutes.
- ``inversion``: recover a text from one update.
- ``audit``: both attacks on a client of an experiment.
- ``canary_clients``: guess which clients took part in private runs, among them ``summed_rounds``;
  ``trials``: the epsilon that this refutes.
"""
