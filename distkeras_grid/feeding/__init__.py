"""From rows of a DataFrame to batches of arrays: column schema, conversion, row cache, batches."""
