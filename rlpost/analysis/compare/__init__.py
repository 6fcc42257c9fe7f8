"""Advantages side by side: of several files, or of one input under several recipes."""
