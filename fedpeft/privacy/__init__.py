"""Differential privacy: what a client or the server does to numbers, and what that costs.

``accounting`` turns mechanisms into epsilon and back, ``ledger`` keeps what a client has spent,
``noise`` draws, ``example`` is DP-SGD on one client's examples, ``updates`` protects whole clients.
Nothing here knows Flower; each file imports its heavy libraries where it uses them.
"""
