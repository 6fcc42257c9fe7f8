"""Presets: recipes that reproduce the numbers of a framework, one small TOML file each.

A file has the fields of a recipe that differ from rlpost's defaults. `[estimators.NAME]` has the
fields that differ for the framework's estimator NAME; its `estimator` is the name of rlpost's
estimator, if that is another one. `[loss]` and `[losses.NAME]` are the same for the policy loss.
`[source]` names the framework's repository, the commit and the release that were read.
`[corrections]` has the named off-policy corrections: fields of a recipe, and in `loss` fields
of the policy loss that belongs to one.
"""

from __future__ import annotations

import json
import math
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlpost.errors import UsageError, no_such
from rlpost.recipe.base import Written
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import TABLES, Recipe, load_toml

if TYPE_CHECKING:
    from collections.abc import Mapping

Values = dict[str, Any]
_HOME = Path(__file__).parent
DEFAULT = "default"  # rlpost's own choices, which have no file
PRESETS = tuple(sorted(path.stem for path in _HOME.glob("*.toml")))
_LOSS_TABLES = ("loss", "losses")
_OTHER_TABLES = ("source", "corrections")
_OF_CORRECTIONS = ("correction", "is_clamp", "is_filter_clamp", "is_observations")
_TOML_WIDTH = 80  # characters of a comment


class FrameworkSource(NamedTuple):
    """The code of a framework that a preset reproduces."""

    framework: str
    repository: str
    """Owner and name on GitHub."""
    covers: str
    """The modules that the preset reproduces."""
    commit: str = ""
    """The first digits of the commit that was read; empty if the package does not name it."""
    release: str = ""
    """The release that has this code; empty if it was not released."""
    date: str = ""
    """Day of the commit or of the release, as YYYY-MM-DD; empty if unknown."""

    @property
    def version(self) -> str:
        """Release, commit and date, without those that are empty."""
        return ", ".join(part for part in (self.release, self.commit, self.date) if part)

    def __str__(self) -> str:
        """Return one line: framework, repository, version, and what the preset covers."""
        return f"{self.framework} ({self.repository}, {self.version}): {self.covers}"


def file_of(name: str) -> Path:
    """Return the file of a preset; raises UsageError with the closest names if there is none."""
    if name not in PRESETS:
        raise UsageError(
            no_such(
                f"no preset {name!r}",
                name,
                (DEFAULT, *PRESETS),
                f"there are {', '.join((DEFAULT, *PRESETS))}",
            )
        )
    return _HOME / f"{name}.toml"


@cache
def table_of(name: str) -> Values:
    """Return the table of a preset's file; none for `default`. It is shared, and not changed."""
    return {} if name == DEFAULT else load_toml(file_of(name))


def source_of(name: str) -> FrameworkSource:
    """Return the framework's code that a preset reproduces; raises UsageError if there is none."""
    return FrameworkSource(**table_of(name)["source"])


def about(name: str) -> str:
    """Return one line about a preset: the framework, its version, and what the preset covers."""
    return "rlpost's own choices" if name == DEFAULT else str(source_of(name))


def variants(name: str) -> tuple[str, ...]:
    """Return the estimators for which a preset has a table."""
    return tuple(table_of(name).get("estimators", {}))


def merged(*layers: Values) -> Values:
    """Return the fields of all layers; later ones override, and tables are merged."""
    out: Values = {}
    for layer in layers:
        joined = {
            name: {**out[name], **layer[name]}
            for name in (*TABLES, "loss_options")
            if isinstance(layer.get(name), dict) and isinstance(out.get(name), dict)
        }
        out = {**out, **layer, **joined}
    return out


def values_of(name: str, values: Values | None = None) -> Values:
    """Return the fields of a preset, overridden by the user's values.

    Args:
        name: one of PRESETS, or `default`.
        values: fields of a recipe. The estimator selects the preset's variant.

    Raises:
        UsageError: there is no such preset.
    """
    return recipe_values(table_of(name), values)


def recipe_values(table: Values, values: Values | None = None) -> Values:
    """Return the fields of a preset's table, overridden by the user's values."""
    recipe = {key: x for key, x in table.items() if key not in (*_LOSS_TABLES, *_OTHER_TABLES)}
    return _with_variant(recipe, "estimator", "grpo", "estimators", values)


class NamedCorrection(NamedTuple):
    """A named off-policy correction of a framework."""

    recipe: Values
    """Fields of a recipe, with the framework's numerics of corrections."""
    loss: Values
    """Fields of the policy loss; none if it leaves the loss as it is."""


def corrections() -> tuple[str, ...]:
    """Return all named corrections, as FRAMEWORK:NAME."""
    pairs = (
        (preset, name) for preset in PRESETS for name in table_of(preset).get("corrections", ())
    )
    return tuple(f"{framework}:{name}" for framework, name in pairs)


def correction_named(name: str | None) -> NamedCorrection:
    """Return one of `corrections()`; for None and `none` one without any field.

    Raises:
        UsageError: there is no such correction.
    """
    if name in (None, "none"):
        return NamedCorrection({}, {})
    assert name is not None
    framework, _, correction = name.partition(":")
    if name not in corrections():
        of_framework = [known for known in corrections() if known.startswith(f"{framework}:")]
        choices = f"there are {', '.join(of_framework or corrections())}"
        raise UsageError(
            no_such(f"--correction: no correction {name!r}", name, corrections(), choices)
        )
    table = table_of(framework)
    fields = dict(table["corrections"][correction])
    usual = {key: x for key, x in table["numerics"].items() if key in _OF_CORRECTIONS}
    loss = fields.pop("loss", {})
    return NamedCorrection(merged({"numerics": usual}, fields), loss)


def usual_estimator(name: str) -> str:
    """Return the default estimator of a preset, by the framework's name."""
    table = table_of(name)
    return str(table.get("estimator", "grpo"))


def _with_variant(
    table: Values, field: str, default: str, variants: str, values: Values | None
) -> Values:
    """Return a table's fields, overridden by those of the selected variant and by the user's."""
    overrides = dict(values or {})
    tables = table.pop(variants, {})
    name = overrides.pop(field, table.get(field, default))
    variant = tables.get(name, {}) if isinstance(name, str) else {}  # the model rejects others
    fields = merged(table, {field: name}, variant, overrides)
    if field == "estimator" and fields[field] != name:
        fields["estimator_name"] = name
    return fields


def preset(name: str, *, correction: str | None = None, **values: Any) -> Recipe:
    """Return the recipe of a framework.

    Args:
        name: one of PRESETS.
        correction: one of `corrections()`, as `verl:decoupled_geo_rs`; it overrides the preset.
        values: fields of the recipe that override both.

    Raises:
        UsageError: there is no such preset, or options exclude each other.
    """
    changes = merged(correction_named(correction).recipe, values)
    return Recipe.of(values_of(name, changes), f"preset {name}")


def loss_values_of(name: str, values: Values | None = None) -> Values:
    """Return the fields of a preset's policy loss, overridden by the user's values.

    Args:
        name: one of PRESETS, or `default`.
        values: fields of LossOptions. The loss selects the preset's variant.

    Raises:
        UsageError: there is no such preset.
    """
    return loss_values(table_of(name), values)


def loss_values(table: Values, values: Values | None = None) -> Values:
    """Return the fields of the policy loss of a preset's table, overridden by the user's values."""
    loss = {**table.get("loss", {}), "losses": table.get("losses", {})}
    return _with_variant(loss, "loss", "ppo", "losses", values)


def loss_preset(name: str, *, correction: str | None = None, **values: Any) -> LossOptions:
    """Return the policy loss of a framework.

    Args:
        name: one of PRESETS, or `default`.
        correction: one of `corrections()`, such as `verl:bypass_pg_is`; it overrides the preset.
        values: fields of LossOptions that override both.

    Raises:
        UsageError: there is no such preset, or options exclude each other.
    """
    changes = {**correction_named(correction).loss, **values}
    return LossOptions.of(loss_values_of(name, changes), f"preset {name}")


def loss_variants(name: str) -> tuple[str, ...]:
    """Return the policy losses for which a preset has a table."""
    return tuple(table_of(name).get("losses", {}))


class FieldDifference(NamedTuple):
    """A field in which two recipes differ, and its description."""

    field: str
    left: Any
    right: Any
    meaning: str

    @property
    def path(self) -> str:
        """The field, of numerics as `numerics.NAME`, of the estimator as `options.NAME`."""
        is_own = self.field in Recipe.model_fields or "." in self.field
        return self.field if is_own else f"numerics.{self.field}"


def _written(value: Any) -> Any:
    """Return a value of a recipe with its parts as one writes them."""
    if isinstance(value, Written):
        return value.plain
    return tuple(map(_written, value)) if isinstance(value, tuple) else value


def differences(
    left: Recipe, right: Recipe, meanings: Mapping[str, str] | None = None
) -> list[FieldDifference]:
    """Return the fields in which two recipes differ: options, then numerics, in field order.

    Args:
        left: a recipe, with the options of its estimator as `options.NAME`.
        right: another one.
        meanings: the descriptions of options.
    """
    fields = []
    for model, other in ((left, right), (left.numerics, right.numerics)):
        for name, info in type(model).model_fields.items():
            pair = _written(getattr(model, name)), _written(getattr(other, name))
            if name == "options":
                for key in dict.fromkeys(key for options in pair for key in options):
                    first, second = (options.get(key) for options in pair)
                    if first != second:
                        meaning = (meanings or {}).get(key, "")
                        fields.append(FieldDifference(f"options.{key}", first, second, meaning))
            elif name not in ("estimator_name", "numerics") and pair[0] != pair[1]:
                meaning = " ".join((info.description or "").split())
                fields.append(FieldDifference(name, *pair, meaning))
    return fields


def loss_differences(
    left: Values, right: Values, texts: Mapping[str, str]
) -> list[FieldDifference]:
    """Return the values in which two policy losses differ, as `loss.OPTION`.

    Args:
        left: values by field of LossOptions, as a loss resolves them; None if it has none.
        right: those of the other loss.
        texts: what options of `loss_options` are.
    """
    fields = LossOptions.model_fields.items()
    meanings = {name: " ".join((info.description or "").split()) for name, info in fields}
    left, right = (loss | loss.get("loss_options", {}) for loss in (left, right))
    return [
        FieldDifference(f"loss.{name}", left.get(name), right.get(name), meaning)
        for name, meaning in {**meanings, **texts}.items()
        if name != "loss_options" and left.get(name) != right.get(name)
    ]


def changed(recipe: Recipe, loss: LossOptions | None = None, *, whole: bool = False) -> Values:
    """Return the fields of a recipe, and of a loss, that differ from the defaults, as plain data.

    With `whole`, all numerics are included.
    """
    values = recipe.model_dump(mode="json", exclude_defaults=True)
    if whole:
        values["numerics"] = recipe.numerics.model_dump(mode="json")
    of_loss = loss.model_dump(mode="json", exclude_defaults=True) if loss else {}
    return {**values, "loss": of_loss} if of_loss else values


def toml_lines(
    recipe: Recipe, loss: LossOptions | None = None, *, whole: bool = False
) -> list[str]:
    """Return the fields of `changed` as lines of a TOML file, each below its description."""
    return toml_of(changed(recipe, loss, whole=whole))


def toml_of(values: Values) -> list[str]:
    """Return fields of a recipe, plain data, as lines of a TOML file with their descriptions."""
    values = dict(values)
    tables = {name: values.pop(name) for name in list(values) if isinstance(values[name], dict)}
    fields = {"numerics": Numerics.model_fields, "loss": LossOptions.model_fields}
    lines = [f"{name} = {toml_value(value)}" for name, value in values.items()]
    for title, table in tables.items():
        lines += ["", f"[{title}]"]
        for name, value in table.items():
            info = fields.get(title, {}).get(name)
            if info and info.description:
                lines += toml_comment(" ".join(info.description.split()))
            key = name if name.isidentifier() else json.dumps(name)
            lines.append(f"{key} = {toml_value(value)}")
    return lines


def toml_value(value: Any) -> str:
    """Return a plain value as in TOML: as in JSON, but for tables and infinity."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {toml_value(x)}' for name, x in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)


def toml_comment(text: str) -> list[str]:
    """Return a text as lines of a TOML comment."""
    return textwrap.wrap(f"# {text}", _TOML_WIDTH, subsequent_indent="# ")
