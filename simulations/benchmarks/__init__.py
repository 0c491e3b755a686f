"""Benchmarks: what fedpeft costs and saves, beside bare loops and other libraries.

Every script but ``common`` prints a table and writes it into ``results``; ``parts`` holds what the
scripts are made of. Figures that are compared come from
alternating repeats (A B A B ...), as a median ratio with the smallest and the largest.
"""

import os

# As in fedpeft.cli, and before torch is loaded: waiting threads that spin slow a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
