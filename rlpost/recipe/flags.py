"""The flag and the environment variable of each field, by which errors name an option."""

from __future__ import annotations

import re

FLAG = re.compile(r"--[a-z][a-z-]*")
"""A flag in a text."""
FLAGS = {
    "columns": "--map",
    "options": "--option",
    "teachers": "--teacher",
    "loss_options": "--loss-option",
}
"""Options that are not called like their field."""
PREFIX = "RLPOST_"
"""How the names of environment variables begin."""
OF_RUNS = ("device", "chunk_tokens", "workers", "max_memory", "engine")
"""Options that change how a run is done, and no number; they are no fields of a recipe."""


def flag_of(name: str) -> str:
    """Return the option of a field of Recipe or LossOptions.

    >>> flag_of("kl_coef"), flag_of("columns")
    ('--kl-coef', '--map')
    """
    return FLAGS.get(name, "--" + name.replace("_", "-"))


def variable_of(name: str) -> str:
    """Return the environment variable of a field, or of another option.

    >>> variable_of("kl_coef"), variable_of("columns")
    ('RLPOST_KL_COEF', 'RLPOST_MAP')
    """
    return PREFIX + flag_of(name)[2:].upper().replace("-", "_")


def field_of(flag: str) -> str:
    """Return the field of an option.

    >>> field_of("--kl-coef"), field_of("--map")
    ('kl_coef', 'columns')
    """
    fields = {other: name for name, other in FLAGS.items()}
    return fields.get(flag, flag.removeprefix("--").replace("-", "_"))
