"""Training in simulated time: the rules and the server's own code under a queue of events."""
