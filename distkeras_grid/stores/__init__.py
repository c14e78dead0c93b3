"""Where workers read the tiles of their local sets: locations, mirrors, Parquet data sets."""
