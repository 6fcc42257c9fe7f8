"""Replay: recorded numbers of a trainer against those of a recipe, stage by stage."""
