"""Differential privacy: what a client or the server does to numbers, and what that costs.

``accounting`` turns mechanisms into epsilon and back, ``ledger`` keeps what was spent, ``noise``
draws, ``example`` is DP-SGD on one client's examples, ``updates`` protects whole clients, ``plan``
is what an experiment asks for, ``statement`` what a result says. Nothing here knows Flower.
"""
