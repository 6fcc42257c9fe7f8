"""What makes the numbers of `rlpost loss` say less than they seem to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlpost.analysis.loss.resolved import idle_options
from rlpost.analysis.loss.totals import POLICIES
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from rlpost.analysis.loss.totals import Oddities
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.stages.loss import LossConfig


Json = dict[str, Any]
DUMPED = "dumped_advantages"  # as `rlpost convert` calls what a framework computed itself
LEAST_ESS = 0.1
_OF_EVERY_RUN = {"columns", "nonfinite", "numerics", "emit_only", "replace"}


def warnings_of(
    job: Plan, summary: Json, odd: Oddities, settings: Sequence[LossConfig]
) -> list[str]:
    """What makes the numbers of a run say less than they seem to."""
    columns, ratio, advantage = job.columns, summary["ratio"], summary["advantage"]
    role = f"{summary['behaviour']}_log_probs"
    old, new = columns.column(role), columns.column("log_probs")
    ess, empty = summary["ess"], summary["left_out"] - summary["nonfinite"]
    said = [
        ("mask" not in columns, "no mask column: every token counts as the policy's own"),
        (old == new, f"current and old log-probs are the same column, `{new}`"),
        (
            old != new and ratio["min"] == ratio["max"] == 1,
            (
                f"`{new}` equals `{old}` throughout: every ratio is 1, so nothing is clipped. "
                "Were both dumped before the update?"
            ),
        ),
        (
            advantage["mean"] is not None and advantage["min"] == advantage["max"] == 0,
            "all advantages are zero: nothing would be learnt from this file",
        ),
        (
            ess is not None and ess < LEAST_ESS,
            (
                f"effective sample size {100 * (ess or 0):.2g} % of the tokens: a few ratios "
                f"outweigh all others; do `{new}` and `{old}` belong to the same tokens?"
            ),
        ),
        (
            summary["nonfinite"] > 0,
            f"{summary['nonfinite']} responses left out: a number in them is not finite",
        ),
        (empty > 0, f"{empty} responses have no token that counts: masked, dropped or empty"),
    ]
    return [
        *(text for true, text in said if true),
        *_impossible(job, odd),
        *_clamped(odd, settings, new, old),
    ]


def _impossible(job: Plan, odd: Oddities) -> Iterator[str]:
    """Log-probs that are none."""
    ends = zip(odd.positive.tolist(), odd.low.tolist(), odd.high.tolist(), strict=True)
    for role, (positive, low, high) in zip(POLICIES.values(), ends, strict=True):
        if role not in job.columns or not positive:
            continue
        column = job.columns.column(role)
        if low >= 0 and high <= 1:
            yield (
                f"`{column}` ({role}) is between {low:.4g} and {high:.4g} throughout: these are "
                "probabilities; log-probs, their logarithms, are needed"
            )
        else:
            yield (
                f"`{column}` ({role}) is above 0 at {positive:,} tokens, up to {high:.4g}: "
                "no log-prob is; is it another quantity, or negated?"
            )


def _clamped(odd: Oddities, settings: Sequence[LossConfig], new: str, old: str) -> Iterator[str]:
    """Log ratios beyond the clamp of a setting; each bound is named once."""
    found = dict(zip((one.clamp for one in settings), odd.clamped.tolist(), strict=True))
    for clamp, count in sorted(found.items()):
        if count and not math.isinf(clamp):
            yield (
                f"|{new} - {old}| is above {clamp:g} at {count:,} tokens, up to "
                f"{float(odd.far):.4g} nats: --ratio-clamp bounds it there, and stops the gradient"
            )


def without_effect(
    summary: Json,
    settings: Sequence[LossConfig],
    of_recipe: Collection[str],
    of_loss: Collection[str],
) -> list[str]:
    """Options that were asked for, and changed nothing; and advantages that nothing looked at.

    Args:
        summary: of the run.
        settings: its losses.
        of_recipe: fields of Recipe that were set by hand, on the command line or in a file.
        of_loss: likewise fields of LossOptions, those of a sweep left out.
    """
    said = []
    column = summary["advantages_from"]
    made = [x for x in of_recipe if x in Recipe.model_fields and x not in _OF_EVERY_RUN]
    if summary["estimator"] is None and made:
        said.append(
            f"{', '.join(sorted(made))}: without effect, since the input has advantages, "
            f"`{column}`; --map advantages=none makes them anew"
        )
    if summary["advantages_aside"] == DUMPED:
        said.append(
            f"the input has {DUMPED}, what its framework computed itself: "
            f"--map advantages={DUMPED} takes them"
        )
    idle: dict[str, dict[str, None]] = {}
    for setting in settings:
        asked = {*of_loss, *setting.swept} - {"loss"}
        for name, why in idle_options(setting, asked).items():
            idle.setdefault(name, {})[why] = None
    if all(one["loss"]["kl"] is None for one in summary["settings"]):
        for name in sorted(of_loss):
            if name.startswith("kl_loss_"):
                idle[name] = {"this file, which has no ref_log_probs": None}
    said += [f"{name}: without effect on {', '.join(whys)}" for name, whys in idle.items()]
    return said
