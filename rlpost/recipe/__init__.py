"""Recipes: the options of a run, presets, and the roles of columns."""
