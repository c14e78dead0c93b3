"""Local data sets: each worker draws its own tiles in each iteration, and reads them itself.

`tile_index` and `sampler` do no I/O. `rows` reads the tiles of a window from a store, and
`worker_sampler` gives the windows and tests with them.
"""
