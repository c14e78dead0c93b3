"""Predictions of a model for the rows of a DataFrame, and their evaluation."""
