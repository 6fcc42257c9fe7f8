"""Statistics and findings of rollout files, computed before training.

`facts.inspect` returns a tree of plain dataclasses (`model`). Files are read once, in chunks; a few
numbers per response stay in memory. Nothing here imports torch.
"""
