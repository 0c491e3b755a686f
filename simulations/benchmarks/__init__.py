"""Benchmarks: costs and savings of fedpeft compared with bare loops and other libraries.

Every script except ``common`` prints a table and writes it into ``results``; ``parts`` holds their
building blocks. Compared figures come from alternating repeats (A B A B ...), given as the median
ratio with the smallest and the largest.
"""

import os

# As in fedpeft.cli, before torch is imported: spinning threads slow a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
