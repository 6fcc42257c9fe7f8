"""Replay of the metrics that a trainer logged."""
