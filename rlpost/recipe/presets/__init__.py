"""Presets: recipes that give the numbers of a framework, one small TOML file each.

A file holds the fields of a recipe that differ from rlpost's defaults. `[estimators.NAME]` adds
what that framework does where NAME is the estimator; its `estimator` says which of rlpost's own
that is, so that a framework's names and variants can be asked for, too. `[loss]` and
`[losses.NAME]` do the same for the policy loss.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from rlpost.errors import UsageError
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import Recipe, load_toml
from rlpost.recipe.roles import closest

Values = dict[str, Any]
_HOME = Path(__file__).parent
DEFAULT = "default"  # rlpost's own choices, which need no file
PRESETS = tuple(sorted(path.stem for path in _HOME.glob("*.toml")))
_TABLES = ("numerics", "columns", "teachers")
_OF_LOSSES = ("loss", "losses")


def file_of(name: str) -> Path:
    """The file of a preset; raises UsageError with the nearest names if there is none."""
    if name not in PRESETS:
        hint = closest(name, PRESETS) or f"; there are {', '.join(PRESETS)}"
        raise UsageError(f"no preset {name!r}{hint}")
    return _HOME / f"{name}.toml"


def about(name: str) -> str:
    """The first line of a preset's file: what it stands for."""
    if name == DEFAULT:
        return "rlpost's own choices"
    return file_of(name).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def variants(name: str) -> tuple[str, ...]:
    """The estimators for which a preset says something of its own."""
    return tuple(load_toml(file_of(name)).get("estimators", {}))


def merged(*layers: Values) -> Values:
    """Fields of later layers in place of those of earlier ones; tables are joined."""
    out: Values = {}
    for layer in layers:
        joined = {
            name: {**out[name], **layer[name]}
            for name in _TABLES
            if isinstance(layer.get(name), dict) and isinstance(out.get(name), dict)
        }
        out = {**out, **layer, **joined}
    return out


def values_of(name: str, values: Values | None = None) -> Values:
    """The fields of a preset, with values of the user's own above them.

    Args:
        name: one of PRESETS, or `default`.
        values: fields of a recipe. An estimator among them chooses the preset's variant.

    Raises:
        UsageError: there is no such preset.
    """
    table = {} if name == DEFAULT else load_toml(file_of(name))
    recipe = {key: value for key, value in table.items() if key not in _OF_LOSSES}
    return _chosen(recipe, "estimator", "grpo", "estimators", values)


def usual_estimator(name: str) -> str:
    """The estimator that a preset gives where none is asked for, by the framework's name."""
    table = {} if name == DEFAULT else load_toml(file_of(name))
    return str(table.get("estimator", "grpo"))


def _chosen(table: Values, what: str, usual: str, variants: str, values: Values | None) -> Values:
    """A table's fields, those of the variant that is asked for, and the user's own above them."""
    above = dict(values or {})
    tables = table.pop(variants, {})
    name = above.pop(what, table.get(what, usual))
    return merged(table, {what: name}, tables.get(name, {}), above)


def preset(name: str, **values: Any) -> Recipe:
    """The recipe of a framework.

    Args:
        name: one of PRESETS.
        values: fields of the recipe that differ from the preset.

    Raises:
        UsageError: there is no such preset, or the values do not fit together.
    """
    return Recipe.of(values_of(name, values), f"preset {name}")


def loss_values_of(name: str, values: Values | None = None) -> Values:
    """The fields of a preset's policy loss, with values of the user's own above them.

    Args:
        name: one of PRESETS, or `default`.
        values: fields of LossOptions. A loss among them chooses the preset's variant.

    Raises:
        UsageError: there is no such preset.
    """
    table = {} if name == DEFAULT else load_toml(file_of(name))
    loss = {**table.get("loss", {}), "losses": table.get("losses", {})}
    return _chosen(loss, "loss", "ppo", "losses", values)


def loss_preset(name: str, **values: Any) -> LossOptions:
    """The policy loss of a framework.

    Args:
        name: one of PRESETS, or `default`.
        values: fields of LossOptions that differ from the preset.

    Raises:
        UsageError: there is no such preset, or the values do not fit together.
    """
    return LossOptions.of(loss_values_of(name, values), f"preset {name}")


def loss_variants(name: str) -> tuple[str, ...]:
    """The policy losses for which a preset says something of its own."""
    return tuple(load_toml(file_of(name)).get("losses", {}))


class Difference(NamedTuple):
    """A field in which two recipes differ, and what it is about."""

    field: str
    left: Any
    right: Any
    why: str


def differences(left: Recipe, right: Recipe) -> list[Difference]:
    """Where two recipes differ: options first, then numerics, each in the order of their lists."""
    found = []
    for ours, theirs in ((left, right), (left.numerics, right.numerics)):
        for name, info in type(ours).model_fields.items():
            pair = getattr(ours, name), getattr(theirs, name)
            if name != "numerics" and pair[0] != pair[1]:
                why = " ".join((info.description or "").split())
                found.append(Difference(name, *pair, why))
    return found


def changed(recipe: Recipe, loss: LossOptions | None = None, *, every: bool = False) -> Values:
    """The fields of a recipe, and of a loss, that are not at their default, as plain data.

    With `every`, all of the numerics are there.
    """
    values = recipe.model_dump(mode="json", exclude_defaults=True)
    if every:
        values["numerics"] = recipe.numerics.model_dump(mode="json")
    own = loss.model_dump(mode="json", exclude_defaults=True) if loss else {}
    return {**values, "loss": own} if own else values


def toml_lines(
    recipe: Recipe, loss: LossOptions | None = None, *, every: bool = False
) -> list[str]:
    """The same as the lines of a TOML file, with what each of the numerics is about."""
    values = changed(recipe, loss, every=every)
    tables = {name: values.pop(name) for name in list(values) if isinstance(values[name], dict)}
    fields = {"numerics": Numerics.model_fields, "loss": LossOptions.model_fields}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    for title, table in tables.items():
        lines += ["", f"[{title}]"]
        for name, value in table.items():
            info = fields.get(title, {}).get(name)
            why = f"  # {' '.join(info.description.split())}" if info and info.description else ""
            key = name if name.isidentifier() else json.dumps(name)
            lines.append(f"{key} = {json.dumps(value)}{why}")
    return lines
