"""Consoles, tables, numbers and small charts on a terminal; uses rich."""
