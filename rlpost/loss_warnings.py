"""What makes the numbers of `rlpost loss` say less than they seem to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.losses import LOSSES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rlpost.loss_stages import Setting
    from rlpost.plan import Job

Json = dict[str, Any]
_OF_EVERY_RUN = {"columns", "nonfinite", "numerics", "emit_only", "replace"}


def warnings_of(job: Job, summary: Json) -> list[str]:
    """What makes the numbers of a run say less than they seem to."""
    columns, ratio, advantage = job.columns, summary["ratio"], summary["advantage"]
    old, new = (columns.column(role) for role in ("old_log_probs", "log_probs"))
    dropped = summary["left_out"]
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
        (dropped > 0, f"{dropped} responses have no token that counts: masked, dropped or empty"),
    ]
    return [text for true, text in said if true]


def without_effect(summary: Json, settings: Sequence[Setting], asked: Collection[str]) -> list[str]:
    """Options that were asked for, and changed nothing.

    Args:
        summary: of the run.
        settings: its losses.
        asked: fields of Recipe and LossOptions that were set by hand, those of a sweep left out.
    """
    said = []
    column, recipe = summary["advantages_from"], summary["recipe"]
    made = [name for name in asked if name in recipe and name not in _OF_EVERY_RUN]
    if summary["estimator"] is None and made:
        said.append(
            f"{', '.join(sorted(made))}: without effect, since the input has advantages, "
            f"`{column}`; --map advantages=none makes them anew"
        )
    known = {name for one in LOSSES.values() for name in one.knobs}
    idle: dict[str, set[str]] = {}
    for setting in settings:
        for name in ({*asked} | {*setting.swept}) & known - {*setting.loss.knobs}:
            idle.setdefault(name, set()).add(setting.loss.name)
    said += [
        f"{name}: without effect on {', '.join(sorted(names))}" for name, names in idle.items()
    ]
    return said
