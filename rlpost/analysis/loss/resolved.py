"""Which options a loss looks at, and the values they have in the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlpost.losses import cispo, geo_mean, gspo, ppo
from rlpost.losses.base import limits

if TYPE_CHECKING:
    from collections.abc import Collection

    from rlpost.pipeline.stages.loss import LossConfig


_PPO = (ppo.DEFAULT_CLIP, ppo.DEFAULT_CLIP)
_GEO = (geo_mean.OWN, geo_mean.OWN)
_OWN = {"ppo": _PPO, "gspo": gspo.OWN, "cispo": cispo.OWN, "geo_mean": _GEO}
_CLIPS = ("pg_clip", "pg_clip_low", "pg_clip_high")
_MASKS = ("prob_mask", "prob_mask_low", "prob_mask_high")
_WITHOUT_RATIO = ("pg", "gpg")  # A and log π are all they look at
Bounds = tuple[float | None, float | None]
Values = dict[str, Any]


def ratio_bounds(setting: LossConfig) -> Bounds:
    """The least and the greatest ratio that a setting leaves as it is.

    The ratio is the one that the loss uses, of a response with gspo; None where there is no bound,
    or where the loss looks at something else than a ratio.
    """
    name = setting.loss.name
    if name in ("tis", "topr"):
        knobs, options = setting.loss.knobs, setting.options
        least = knobs["tis_low"] if options.tis_low is None else options.tis_low
        most = knobs["tis_high"] if options.tis_high is None else options.tis_high
    elif name == "geo_mean":
        low, high = _offsets(setting)
        least, most = math.exp(-low), math.exp(high)
    elif name in _OWN:
        least, most = _limits(setting)
    else:
        return None, None
    return least if least > 0 else None, most if math.isfinite(most) else None


def _limits(setting: LossConfig) -> tuple[float, float]:
    options, name = setting.options, setting.loss.name
    meaning = options.cispo_bounds if name == "cispo" and options.cispo_bounds else "offset"
    return limits(options.pg_clip_low, options.pg_clip_high, options.pg_clip, _OWN[name], meaning)


def _offsets(setting: LossConfig) -> tuple[float, float]:
    """The clip range below and above, as pg_clip_low and pg_clip_high would say it."""
    options = setting.options
    low, high = _OWN[setting.loss.name]
    if options.pg_clip is not None:
        low = high = options.pg_clip
    elif setting.loss.name == "cispo" and options.cispo_bounds == "ratio":
        high += 1  # the loss's own numbers are offsets
    low = low if options.pg_clip_low is None else options.pg_clip_low
    return low, high if options.pg_clip_high is None else options.pg_clip_high


def resolved(setting: LossConfig) -> Values:
    """The options that a setting looks at, by the values that it uses: fields of LossOptions.

    The clip range is given as pg_clip_low and pg_clip_high; pg_clip has its value where both are
    equal. `agg_length` is None where it is the longest response's. LossOptions of these values give
    the same loss.
    """
    options, knobs = setting.options, setting.loss.knobs
    values: Values = {"loss": setting.loss.name, "behaviour": options.behaviour}
    for name, own in knobs.items():
        asked = getattr(options, name)
        values[name] = own if asked is None else asked
    if "pg_clip" in knobs:
        low, high = _offsets(setting)
        values |= {"pg_clip": low, "pg_clip_low": low, "pg_clip_high": high}
        if low != high:
            del values["pg_clip"]
    if "dual_clip" in knobs:
        values["dual_clip"] = _dual(setting)
    if "prob_mask" in knobs:
        values |= {name: _mask(values, name) for name in _MASKS[1:] if name in knobs}
    idle = idle_options(setting, set(type(options).model_fields))
    values["aggregation"] = setting.aggregation
    for name in type(options).model_fields:
        if name.startswith(("agg_", "kl_loss_")) and name not in idle:
            values[name] = getattr(options, name)
    return {name: "never" if value == math.inf else value for name, value in values.items()}


def _dual(setting: LossConfig) -> float:
    """The bound on ratios where A < 0, inf for none."""
    asked, clip = setting.options.dual_clip, setting.options.pg_clip
    return ppo.dual_bound(asked, ppo.DEFAULT_CLIP if clip is None else clip)


def _mask(values: Values, name: str) -> float:
    return float(values["prob_mask"] if values[name] is None else values[name])


def idle_options(setting: LossConfig, asked: Collection[str]) -> Values:
    """Options among these that change nothing of a setting's loss: name -> `loss`, and why.

    Args:
        setting: the loss with its options.
        asked: fields of LossOptions.
    """
    options, name = setting.options, setting.loss.name
    how, knobs = setting.aggregation, {*setting.loss.knobs}
    norm = how == "seq-mean-token-sum-norm"
    over_rows = not norm and how != "token-mean"
    other = {"agg_length", "agg_norm"} if not norm else set()
    other |= set() if over_rows or (norm and options.agg_norm == "rows") else {"agg_rows"}
    found = dict.fromkeys(other, f"{name} with aggregation {how}")
    for both, sides in ((_CLIPS[0], _CLIPS[1:]), (_MASKS[0], _MASKS[1:])):
        mine = [side for side in sides if side in knobs]
        if mine and all(getattr(options, side) is not None for side in mine):
            found[both] = f"{name}, since {' and '.join(mine)} are given"
    every = type(options).model_fields
    free = {"loss", "behaviour", "aggregation"}
    for field in every:
        of_loss = field not in free and not field.startswith(("agg_", "kl_loss_"))
        if of_loss and field not in knobs:
            found[field] = name
    if name in _WITHOUT_RATIO and not options.kl_loss_ratio:
        found["behaviour"] = f"{name}, which has no ratio"
    if options.dual_clip == "twice" and "dual_clip" in knobs:
        found.pop("pg_clip", None)  # the dual clip is made of it
    return {field: why for field, why in found.items() if field in asked}
