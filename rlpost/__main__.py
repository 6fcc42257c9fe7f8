"""`python -m rlpost`: the command line."""

from rlpost.cli.main import leave

if __name__ == "__main__":
    leave()
