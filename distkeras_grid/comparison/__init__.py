"""Trainers and plain Keras side by side: a grid of cells, measured one by one, and what they say.

`cells`, `summary`, `findings` and `page` are pure; `study` runs the grid.
"""
