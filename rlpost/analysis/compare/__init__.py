"""Comparison of advantages: of several files, or of several recipes on one input."""
