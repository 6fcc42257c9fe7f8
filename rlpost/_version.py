"""The version of rlpost."""

__version__ = "0.1.0"
