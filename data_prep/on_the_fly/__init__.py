"""Tiles that are cut while a model trains, from an index."""
