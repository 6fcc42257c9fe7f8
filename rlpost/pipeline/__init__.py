"""Runs: the passes over an input, the stages that compute, totals, and what is written."""
