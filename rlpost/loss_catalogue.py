"""What policy losses there are, in a line each, and their defaults: what is known without torch.

`rlpost --help` and the errors of LossOptions need it; the losses themselves are in rlpost.losses.
"""

from __future__ import annotations

from typing import Any

ABOUT = {
    "ppo": "PPO's clipped surrogate, with separate bounds and dual clip",
    "pg": "the plain policy gradient: no ratio, nothing clipped",
    "gspo": "PPO's surrogate with one ratio for a whole response",
    "cispo": "policy gradient whose importance weights are clipped; every token learns",
    "tis": "policy gradient with truncated importance weights",
    "topr": "plain gradient for good responses, truncated weights for the others",
    "kimi15": "plain gradient, held back by the squared log ratio",
    "geo_mean": "PPO's surrogate of the geometric mean of a response's clipped ratios",
    "sapo": "a smooth gate on the ratio in place of a clip",
    "gpg": "the plain policy gradient as a mean over all tokens",
    "dppo": "masks tokens whose probability moved far in the advantage's direction",
    "ipo": "masks tokens whose probability moved far in any direction",
    "ref_kl": "dppo with the log ratio to the reference in place of advantages",
}
ABOUT_AGGREGATIONS = {
    "token-mean": "sum over all policy tokens of a batch / their number",
    "seq-mean-token-sum": "sum over each response's tokens, then the mean over responses",
    "seq-mean-token-mean": "mean over each response's tokens, then the mean over responses",
    "seq-mean-token-sum-norm": "sum over all tokens / agg_length (agg_norm rows: / responses, too)",
}
# The values of options that a loss takes where nothing is asked for, as `resolved` has them.
DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": {
        "pg_clip": 0.2,
        "pg_clip_low": 0.2,
        "pg_clip_high": 0.2,
        "dual_clip": "never",
        "ratio_clamp": 20.0,
        "aggregation": "token-mean",
    },
    "pg": {"aggregation": "seq-mean-token-sum"},
    "gspo": {
        "pg_clip_low": 3e-4,
        "pg_clip_high": 4e-4,
        "dual_clip": "never",
        "ratio_clamp": 20.0,
        "ratio_cap": "never",
        "aggregation": "seq-mean-token-mean",
    },
    "cispo": {
        "pg_clip_low": "never",
        "pg_clip_high": 4.0,
        "cispo_bounds": "offset",
        "cispo_mask": False,
        "ratio_clamp": 20.0,
        "aggregation": "token-mean",
    },
    "tis": {
        "tis_low": 0.0,
        "tis_high": 1.0,
        "ratio_clamp": "never",
        "aggregation": "seq-mean-token-mean",
    },
    "topr": {
        "tis_low": 0.0,
        "tis_high": 1.0,
        "topr_positive": 1.0,
        "topr_negative": 1.0,
        "ratio_clamp": "never",
        "aggregation": "seq-mean-token-mean",
    },
    "kimi15": {"kimi_tau": 0.1, "aggregation": "seq-mean-token-mean"},
    "geo_mean": {
        "pg_clip": 0.4,
        "pg_clip_low": 0.4,
        "pg_clip_high": 0.4,
        "aggregation": "seq-mean-token-mean",
    },
    "sapo": {
        "sapo_tau_pos": 1.0,
        "sapo_tau_neg": 1.05,
        "ratio_clamp": 20.0,
        "aggregation": "seq-mean-token-mean",
    },
    "gpg": {"aggregation": "token-mean"},
    "dppo": {
        "prob_mask": 0.2,
        "prob_mask_low": 0.2,
        "prob_mask_high": 0.2,
        "square_coef": 1e-3,
        "ratio_clamp": "never",
        "aggregation": "token-mean",
    },
    "ipo": {
        "prob_mask": 0.1,
        "square_coef": 1e-3,
        "ratio_clamp": "never",
        "aggregation": "token-mean",
    },
    "ref_kl": {
        "prob_mask": 0.2,
        "prob_mask_low": 0.2,
        "square_coef": 1e-3,
        "ratio_clamp": "never",
        "aggregation": "token-mean",
    },
}


def word(value: Any) -> str:
    """A value as it stands on a command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def defaults_of(option: str) -> str:
    """What the losses take for an option: `ppo 0.2; geo_mean 0.4`; empty where none has its own.

    >>> defaults_of("kimi_tau"), defaults_of("prob_mask"), defaults_of("agg_rows")
    ('0.1', 'dppo, ref_kl 0.2; ipo 0.1', '')
    """
    found: dict[str, list[str]] = {}
    for name, values in DEFAULTS.items():
        if option in values:
            found.setdefault(word(values[option]), []).append(name)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(names)} {value}" for value, names in found.items())
