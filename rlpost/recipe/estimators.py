"""Names of estimators, without torch: rlpost's own and those that installed packages register."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from rlpost.recipe.roles import closest

NAMES = (
    "gae",
    "reinforce",
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "opo",
    "gpg",
    "grpo_passk",
    "max_rl",
    "gdpo",
    "hierarchical_grpo",
    "optimal_token_baseline",
    "gigpo",
    "step_reinforce",
    "agentic_reinforce",
    "rae",
    "opd",
    "raw",
)
"""The estimators of rlpost; their functions are in `rlpost.estimators`."""
GROUP = "rlpost.estimators"
"""Entry-point group in which a package registers estimators."""


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of the group `rlpost.estimators`, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def check_name(name: str) -> str:
    """Return the name of an estimator, or `path/to/file.py:function`.

    Raises:
        ValueError: there is no estimator of this name (with the closest names).
    """
    if name not in NAMES and ":" not in name:
        others = installed()
        if name not in others:
            names = (*NAMES, *others)
            hint = closest(name, names) or f"; there are {', '.join(names)}"
            raise ValueError(f"no estimator {name!r}{hint}")
    return name
