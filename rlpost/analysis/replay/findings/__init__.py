"""What a difference looks like, and which change reproduces the recorded numbers."""
