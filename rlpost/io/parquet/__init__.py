"""Reading and writing Parquet."""
