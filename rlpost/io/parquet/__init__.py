"""Reading and writing Parquet files."""
