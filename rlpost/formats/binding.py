"""Which field of a user's own file serves which column: by the map, by name, by alias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlpost.errors import DataError, UsageError
from rlpost.formats.canonical import CANONICAL
from rlpost.formats.fields import SAME_TEXT, column_of
from rlpost.formats.layout import layout_named
from rlpost.formats.records import listing
from rlpost.schema import ROLES, closest, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rlpost.formats.base import ReadOptions

# What `rlpost advantages` writes has no canonical column to read it from: such fields are kept.
_WRITTEN = {"advantages", "is_weight", "sample_mask", "sample_weight"}

_NONE = "no field has a name that is known for it"
UNNAMED = {
    "group": f"{_NONE}, and there is no prompt whose text would tell; --group-size N makes blocks",
    **dict.fromkeys(("reward", "log_probs", "old_log_probs"), _NONE),
}
"""Why a user's own file lacks what other commands need."""


@dataclass(frozen=True)
class Binding:
    """Role (or canonical column) -> the field or dotted path that it is read from."""

    fields: Mapping[str, str]

    @property
    def by_prompt(self) -> bool:
        """Whether groups are told by the prompts' texts, since no field names them."""
        named = any(column_of(role) == "prompt_id" for role in self.fields)
        return not named and "prompt" in self.fields

    def sources(self, options: ReadOptions) -> dict[str, str]:
        """Column -> the field that it is read from, or how its values are found."""
        found = {column_of(role): field for role, field in self.fields.items()}
        if options.group_size is not None:
            found["prompt_id"] = f"blocks of {options.group_size} records"
        elif self.by_prompt and "prompt_id" not in options.left_out:
            found["prompt_id"] = f"{self.fields['prompt']} ({SAME_TEXT})"
        return found

    @property
    def taken(self) -> frozenset[str]:
        """The fields that are read whole; they are no extras."""
        return frozenset(self.fields.values())


def bind(names: Collection[str], options: ReadOptions, where: str) -> Binding:
    """Find a field for every role and canonical column there is one for.

    Args:
        names: the fields of the file, top level.
        options: `map` beats names and aliases; a path with dots leads into objects.
        where: the file, for errors.

    Raises:
        UsageError: the map names an unknown role or column, there is no such layout, or one is
            given without a mask.
        DataError: the map names a field that is not there, or no field has a known name.
    """
    chosen = {role: path for role, path in options.map.items() if path != "none"}
    for role, path in chosen.items():
        column_of(role)
        if path not in names and path.partition(".")[0] not in names:
            raise DataError(
                f"{where}: --map {role}={path}: no field {path!r}{closest(path, names)}; "
                f"there are {listing(sorted(names))}"
            )
    found = _found(names, chosen, options, where)
    if options.layout is not None and "mask" not in found:
        raise UsageError(
            f"--layout {layout_named(options.layout)} needs a mask to go by: --map mask=FIELD"
        )
    if not found:
        raise DataError(
            f"{where}: no field has a name that rlpost knows; say which is which with "
            f"--map reward=FIELD, --map group=FIELD and so on; there are {listing(sorted(names))}"
        )
    return Binding(found)


def _found(
    names: Collection[str], chosen: Mapping[str, str], options: ReadOptions, where: str
) -> dict[str, str]:
    roles = resolve(names, {}, where).columns
    served = {column_of(role) for role in chosen}
    found = {
        role: name
        for role, name in roles.items()
        if role not in _WRITTEN and role not in options.map and column_of(role) not in served
    }
    found |= chosen
    taken = {column_of(role) for role in found} | {*found.values()} | served
    taken |= options.left_out
    own = [name for name in CANONICAL if name in names and name not in taken]
    if "truncated" in roles.keys() | chosen.keys():
        own = [name for name in own if name not in ROLES["truncated"].aliases]
    return found | {name: name for name in own}
