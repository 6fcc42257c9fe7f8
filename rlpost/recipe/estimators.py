"""Names of estimators: rlpost's own and those that installed packages register."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from rlpost.errors import OptionValueError, no_such

NAMES = (
    "gae",
    "vtrace",
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
    "mt_grpo",
    "turn_credit",
    "turn_gae",
    "gar",
    "rae",
    "opd",
    "raw",
)
"""The estimators of rlpost; their functions are in `rlpost.estimators`."""
GROUP = "rlpost.estimators"
"""Entry-point group in which a package registers estimators."""


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of the group `rlpost.estimators`, by name; none is imported.

    One with the name of an estimator of rlpost is left out.
    """
    return {x.name: x for x in entry_points(group=GROUP) if x.name not in NAMES}


def check_name(name: str) -> str:
    """Return the name of an estimator, or `path/to/file.py:function`.

    Raises:
        OptionValueError: there is no estimator of this name (with the closest names).
    """
    if name not in NAMES and ":" not in name:
        others = installed()
        if name not in others:
            names = (*NAMES, *others)
            tip = f"there are {', '.join(names)}"
            raise OptionValueError(no_such(f"no estimator {name!r}", name, names, tip))
    return name
