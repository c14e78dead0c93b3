"""How good predictions are: by class, by row and by unit. No I/O and no framework."""
