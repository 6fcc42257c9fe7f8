"""Tensor kernels: torch and plain numbers in, tensors out."""
