"""Published errors of quantizers, for tests."""

from __future__ import annotations

#: Mean square error of the best quantizer of a standard normal number, by bits: Max 1960, table I
#: (1 to 5 bits). Those of 6 to 8 bits are from 30,000 steps of Lloyd's method.
LEAST_ERROR = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497, 5: 0.002499}
LEAST_ERROR |= {6: 6.442e-4, 7: 1.635e-4, 8: 4.119e-5}
