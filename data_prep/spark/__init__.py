"""The passes over images and tiles that run on Spark."""
