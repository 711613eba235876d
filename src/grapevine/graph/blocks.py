"""How the graph engine's work is cut up.

Results depend neither on the number of threads nor on the order of blocks nor on the BLAS: matrix products are taken of values
rounded to integers small enough for float64 to add them exactly.
"""

BLOCK = 512  # rows of a tile of H or of cosines: two float64 tiles of this size fit the caches
COLUMNS = 8  # right-hand sides that one conjugate-gradient run carries: 8 float64 are one cache line
