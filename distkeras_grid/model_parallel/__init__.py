"""Model parallelism: one model over several devices, where data parallelism does not fit."""
