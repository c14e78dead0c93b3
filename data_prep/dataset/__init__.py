"""What is stored: schema, manifest, commit, versions and updates of a data set."""
