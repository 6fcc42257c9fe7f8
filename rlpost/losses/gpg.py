"""Group policy gradient: the plain one, as a mean over all tokens."""

from __future__ import annotations

from rlpost.losses.base import Loss
from rlpost.losses.pg import pg

# The advantages make the difference (the estimator gpg), the surrogate is the plain one.
LOSS = Loss("gpg", pg, formula="-A·log π", source="arXiv 2504.02546", aggregation="token-mean")
