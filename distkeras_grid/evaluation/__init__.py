"""How good predictions are, by class, by row and by what rows belong to; no I/O, no framework."""
