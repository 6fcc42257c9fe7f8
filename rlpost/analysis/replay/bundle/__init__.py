"""Bundles: a few responses with their recorded numbers and a recipe, in one zip file."""
