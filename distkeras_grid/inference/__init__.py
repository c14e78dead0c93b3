"""Predictions of a model over a DataFrame, and what they are worth."""
