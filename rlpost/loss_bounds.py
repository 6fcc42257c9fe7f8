"""The ratios beyond which a loss clips, in numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlpost.losses import cispo, geo_mean, gspo, ppo
from rlpost.losses.base import limits

if TYPE_CHECKING:
    from rlpost.loss_stages import Setting

_PPO = (ppo.DEFAULT_CLIP, ppo.DEFAULT_CLIP)
_OWN = {"ppo": _PPO, "gspo": gspo.OWN, "cispo": cispo.OWN}
Bounds = tuple[float | None, float | None]


def ratio_bounds(setting: Setting) -> Bounds:
    """The least and the greatest ratio that a setting leaves as it is.

    The ratio is the one that the loss uses, of a response with gspo; None where there is no bound,
    or where the loss looks at something else than a ratio.
    """
    options, name = setting.options, setting.loss.name
    low, high, both = options.pg_clip_low, options.pg_clip_high, options.pg_clip
    if name in ("tis", "topr"):
        knobs = setting.loss.knobs
        least = knobs["tis_low"] if options.tis_low is None else options.tis_low
        most = knobs["tis_high"] if options.tis_high is None else options.tis_high
    elif name == "geo_mean":
        both = geo_mean.OWN if both is None else both
        least = math.exp(-(both if low is None else low))
        most = math.exp(both if high is None else high)
    elif name in _OWN:
        meaning = options.cispo_bounds if name == "cispo" and options.cispo_bounds else "offset"
        least, most = limits(low, high, both, _OWN[name], meaning)
    else:
        return None, None
    return least if least > 0 else None, most if math.isfinite(most) else None
