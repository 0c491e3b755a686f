"""Attacks on our own training, by a server that knows everything but the data.

``one_run`` is the statistics of an audit in one training run, ``canaries`` the attack it counts,
``inversion`` reads a text off one update, ``subject`` does both to a client of an experiment.
"""
