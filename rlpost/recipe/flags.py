"""The command-line option of each field: errors and warnings name options as they are typed."""

from __future__ import annotations

FLAGS = {"columns": "--map", "teachers": "--teacher"}
"""Options that are not called like their field."""


def flag_of(name: str) -> str:
    """Return the option of a field of Recipe or LossOptions.

    >>> flag_of("kl_coef"), flag_of("columns")
    ('--kl-coef', '--map')
    """
    return FLAGS.get(name, "--" + name.replace("_", "-"))


def field_of(flag: str) -> str:
    """Return the field of an option.

    >>> field_of("--kl-coef"), field_of("--map")
    ('kl_coef', 'columns')
    """
    fields = {other: name for name, other in FLAGS.items()}
    return fields.get(flag, flag.removeprefix("--").replace("-", "_"))
