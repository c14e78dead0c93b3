"""Where tiles lie, and what is in them: no Spark."""
