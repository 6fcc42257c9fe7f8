"""Files, object stores, Parquet, locks, signals and threads; nothing here depends on RL."""
