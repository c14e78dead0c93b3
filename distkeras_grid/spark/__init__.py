"""Everything that talks to Spark's driver: session, launch, storage, data frames."""
