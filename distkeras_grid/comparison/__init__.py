"""Trainers and plain Keras side by side: measure a grid of cells one by one, and evaluate them.

`cells`, `summary` and `page` are pure; `study` runs the grid.
"""
