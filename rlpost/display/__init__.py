"""Consoles, tables, numbers and small charts for people; knows rich, and nothing of rollouts."""
