"""Benchmarks: what the engine costs over a bare loop, Ray beside local, memory a client.

Every script prints a table and writes it into ``results``; figures that are compared come from
alternating repeats (A B A B ...), as a median ratio with the smallest and the largest.
"""

import os

# As in fedpeft.cli, and before torch is loaded: waiting threads that spin slow a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
