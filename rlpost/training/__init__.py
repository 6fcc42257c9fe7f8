"""Enriched files as batches for a training loop: their order, their reading, their layout."""
