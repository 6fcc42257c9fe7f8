"""The search for the recipe that made recorded numbers."""
