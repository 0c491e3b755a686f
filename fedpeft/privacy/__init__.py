"""Differential privacy: mechanisms, their accounting, and records of the privacy spent.

- ``dpsgd``: DP-SGD on one client's examples; ``whole_weights``: its gradients for methods that
  change whole weights.
- ``updates``: privacy of whole clients.
- ``noise``: random numbers for both.
- ``plan``: the mechanism and delta that an experiment asks for.
- ``accounting``: the epsilon of mechanisms, and the noise for an epsilon; ``bounds``: PRV and RDP.
- ``ledger``: a client's charges, stored by ``ledger_store``.
- ``statement``: the privacy section of a result.
"""
