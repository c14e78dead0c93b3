"""The trainers users see, and the run that joins driver, server and workers."""
