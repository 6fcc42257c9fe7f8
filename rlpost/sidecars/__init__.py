"""Sidecars: their columns are joined to those of a file with the same rows."""
