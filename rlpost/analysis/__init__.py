"""Looks at rollouts, a room for each question."""
