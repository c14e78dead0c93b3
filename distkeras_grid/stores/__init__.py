"""Where workers read the tiles of their local sets: locations, mirrors, data sets of Parquet."""
