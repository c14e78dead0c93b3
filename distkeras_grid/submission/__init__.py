"""From a working environment to a job on a cluster: archive, package, command line, YARN."""
