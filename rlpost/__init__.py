"""Post-process RL rollouts and estimate advantages: Parquet in, enriched Parquet out."""

__version__ = "0.1.0"
