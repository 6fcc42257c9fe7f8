"""Formulas: arrays of numpy or torch, and plain numbers, in; arrays of the same kind out."""
