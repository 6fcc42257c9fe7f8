"""Command-line options made from the fields of LossOptions, and the settings of a sweep."""

from __future__ import annotations

import inspect
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from rlpost.errors import UsageError
from rlpost.recipe.base import Bound
from rlpost.recipe.loss import ABOUT, ABOUT_AGGREGATIONS, LossOptions, defaults_of, word
from rlpost.recipe.presets import DEFAULT, loss_values_of
from rlpost.recipe.recipe import Recipe, load_toml
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


PANEL = "Policy loss"
OFF = "no_"
MOST_SETTINGS = 1000
_METAVARS = {"loss": "NAME", "dual_clip": "X|twice|never", "aggregation": "HOW"}
Values = dict[str, Any]


def with_loss_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a typer command one option per field of LossOptions, before those of the recipe."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    own = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    hints = get_type_hints(LossOptions, include_extras=True)
    made = [option for name in LossOptions.model_fields for option in _options(name, hints[name])]
    signature = inspect.Signature([*own, *made, *parameters[len(own) :]])
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _options(name: str, hint: Any) -> list[inspect.Parameter]:
    """The option of a field, as words that LossOptions reads; a flag has its `--no-` form, too."""
    info = LossOptions.model_fields[name]
    flag = "--" + name.replace("_", "-")
    kind = bool if bool in _parts(hint) else str
    usual = defaults_of(name) or (None if info.default in (None, False) else word(info.default))
    default = f" (default {usual})" if usual else ""
    option = typer.Option(
        flag,
        help=_help(name, info.description or "") + default,
        rich_help_panel=PANEL,
        envvar=f"RLPOST_{name.upper()}",
        show_envvar=False,
        show_default=False,
        metavar="" if kind is bool else _METAVARS.get(name) or _metavar(hint),
    )
    made = [_parameter(name, kind, option)]
    if kind is bool:
        made.append(_parameter(f"{OFF}{name}", kind, typer.Option(f"--no-{flag[2:]}", hidden=True)))
    return made


def _help(name: str, text: str) -> str:
    """What an option is; with its values, where these are too long to stand beside its name."""
    more = ""
    if name == "loss":
        more = f" One of {', '.join(ABOUT)}."
    elif name == "aggregation":
        more = f" {'; '.join(f'{how}: {what}' for how, what in ABOUT_AGGREGATIONS.items())}."
    return " ".join(text.split()) + more


def _parameter(name: str, kind: type, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _parts(hint: Any) -> list[Any]:
    """The alternatives of a union, each as it is written."""
    if hint == Bound or get_origin(hint) in (Annotated, Literal) or not get_args(hint):
        return [hint]
    return [part for inner in get_args(hint) for part in _parts(inner)]


def _metavar(hint: Any) -> str:
    """The values that an option takes."""
    for part in _parts(hint):
        if part == Bound:
            return "X|never"
        if get_origin(part) is Literal:
            return "|".join(get_args(part))
        if get_origin(part) is Annotated and get_args(part)[0] is int:
            return "N"
    return "X"


def settings_of(
    options: Mapping[str, Any], sweep: Sequence[str], config: Path | None, preset: str | None
) -> list[tuple[LossOptions, Values]]:
    """The settings of a command line, each with the values that tell it from the others.

    Flags and RLPOST_* beat the file's [loss] table, which beats the preset's. A sweep beats all,
    and gives the product of all its values, the last name's varying fastest.

    Raises:
        UsageError: a name or a value is wrong, or there are too many settings.
    """
    file = load_toml(config) if config is not None else {}
    preset = file.get("preset") if preset is None else preset
    table = _table(file, config)
    given = {name: options[name] for name in LossOptions.model_fields if options[name] is not None}
    turned_off = {name: False for name in LossOptions.model_fields if options.get(f"{OFF}{name}")}
    axes = _axes(sweep)
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    if len(points) > MOST_SETTINGS:
        raise UsageError(f"--sweep: {len(points)} settings; at most {MOST_SETTINGS} are possible")
    by_hand = {**given, **turned_off}
    settings = []
    for point in points:
        asked = {name: None if text == "none" else text for name, text in point.items()}
        own = {**table, **by_hand, **asked}
        origins = dict.fromkeys(table.keys() - by_hand.keys() - asked.keys(), f"{config}, [loss]")
        values = loss_values_of(preset or DEFAULT, own)
        settings.append((LossOptions.of(values, _where(point), origins), point))
    return [(made, _shown(made, point)) for made, point in settings]


def given_by_hand(options: Mapping[str, Any], config: Path | None) -> tuple[set[str], set[str]]:
    """The fields of Recipe, and those of LossOptions, that a command line or its file sets."""
    file = load_toml(config) if config is not None else {}
    given = {name for name, value in options.items() if value not in (None, [], ())}
    given = {name.removeprefix(OFF) for name in given}
    of_recipe = (given | {*file}) & {*Recipe.model_fields}
    return of_recipe, (given | {*_table(file, config)}) & {*LossOptions.model_fields}


def _table(file: Values, config: Path | None) -> Values:
    """The policy loss of a file."""
    table = file.get("loss", {})
    if not isinstance(table, dict):
        raise UsageError(f"{config}: loss is {table!r}: a table [loss] is needed")
    return table


def _where(point: Mapping[str, str]) -> str:
    """What errors call the place that values come from."""
    return f"--sweep {' '.join(f'{n}={x}' for n, x in point.items())}" if point else "command line"


def _shown(made: LossOptions, point: Mapping[str, str]) -> Values:
    """What tells a setting from the others; a loss by the name that was asked for."""
    values = made.model_dump(mode="json")
    return {name: text if name == "loss" else values[name] for name, text in point.items()}


def _axes(sweep: Sequence[str]) -> dict[str, list[str]]:
    """The values of each swept option."""
    axes: dict[str, list[str]] = {}
    for text in sweep:
        name, equals, words = text.partition("=")
        name = name.strip().replace("-", "_")
        values = [word.strip() for word in words.split(",") if word.strip()]
        if not (equals and values):
            raise UsageError(f"--sweep {text}: write it NAME=VALUE,VALUE,...")
        if name not in LossOptions.model_fields:
            hint = closest(name, LossOptions.model_fields)
            raise UsageError(f"--sweep {text}: no option {name!r} of losses{hint}")
        if name in axes:
            raise UsageError(f"--sweep: {name} is named twice; join its values with commas")
        if len(set(values)) < len(values):
            raise UsageError(f"--sweep {text}: a value is there twice")
        axes[name] = values
    return axes
