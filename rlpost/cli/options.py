"""Command-line options made from the fields of Recipe, so that the two cannot drift apart."""

from __future__ import annotations

import inspect
import os
import types
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from rlpost.cli.environment import FLAGS, flag_of, naming_variables, unknown_variables, variable_of
from rlpost.cli.output import be_quiet, say
from rlpost.errors import UsageError
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.presets import DEFAULT, usual_estimator, values_of
from rlpost.recipe.recipe import Recipe, load_toml, without_loss
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pydantic.fields import FieldInfo


class Format(Enum):
    """How a command that only reads writes on stdout."""

    table = "table"
    json = "json"
    markdown = "markdown"


FORMAT = typer.Option("--format", help="What to print on stdout.")
PANELS = {
    "Estimator": (
        "estimator",
        "gamma",
        "lam",
        "lambda_policy",
        "lambda_value",
        "length_adaptive_alpha",
        "step_gamma",
        "episode_weight",
        "step_weight",
        "f_norm",
        "ema_decay",
        "otb_is_cap",
        "episode_domains",
        "teachers",
    ),
    "Sample masks": (
        "max_len_mask",
        "max_response_length",
        "difficulty_mask",
        "difficulty_low",
        "difficulty_high",
        "error_max_len_clip",
        "drop_zero_variance",
        "drop_truncated",
        "mask_before_norm",
    ),
    "Rewards": (
        "reward_components",
        "component_weights",
        "reward_scale",
        "truncation_penalty",
        "group_length_penalty",
        "overlong_penalty",
        "norm_mean",
        "norm_std",
        "reward_clip",
        "reward_clip_low",
        "whiten_rewards",
    ),
    "KL": ("kl_coef", "kl_estimator", "kl_target", "kl_horizon"),
    "Advantages": (
        "whiten_advantages",
        "advantage_clip",
        "difficulty_weight",
        "length_weight",
    ),
    "Off-policy correction": (
        "is_weight",
        "is_cap",
        "is_floor",
        "is_mask",
        "is_normalise",
        "is_filter",
        "is_filter_where",
    ),
    "Columns": (
        "columns",
        "rollout_id",
        "nonfinite",
        "emit",
        "emit_only",
        "replace",
        "pass_threshold",
    ),
    "Numerics": ("numerics",),
}
PAIRS = ("columns", "numerics", "teachers")
REPEATED = (*PAIRS, "is_filter")
LISTS = ("emit", "reward_components", "component_weights", "episode_domains")
OFF = "no_"
_METAVARS = {bool: "", int: "N", float: "X", str: "TEXT"}
METAVARS = {
    "columns": "ROLE=COLUMN",
    "numerics": "NAME=VALUE",
    "emit": "A,B,...",
    "reward_components": "A,B,...",
    "component_weights": "W,W,...",
    "episode_domains": "A,B,...",
    "teachers": "COLUMN=WEIGHT",
    "overlong_penalty": "MAX_LEN BUFFER FACTOR",
    "reward_scale": "LOW HIGH TO_LOW TO_HIGH",
    "group_length_penalty": "OUTPUT INPUT TURNS",
    "estimator": "NAME",
    "rollout_id": "COLUMN",
    "is_mask": "LOW HIGH",
    "is_filter": "LEVEL:MEASURE:LOW:HIGH",
}


def with_recipe_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a typer command one option per field of Recipe, in place of its `**options`.

    It warns of RLPOST_* variables that set nothing, before it runs.
    """

    @wraps(function)
    def run(**given: Any) -> None:
        if given.get("quiet"):
            be_quiet()
        for text in [] if given.get("quiet") else unknown_variables(os.environ):
            say(f"rlpost: {text}")
        with naming_variables():
            function(**given)

    own = [
        parameter
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    made = [
        option
        for panel, names in PANELS.items()
        for name in names
        for option in _options(name, Recipe.model_fields[name], panel)
    ]
    run.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
    return run


def _options(name: str, info: FieldInfo, panel: str) -> list[inspect.Parameter]:
    """The option of a field; for a flag also its `--no-` form, which help does not list."""
    flag = flag_of(name)
    kind = _plain_type(name, info.annotation)
    option = typer.Option(
        flag,
        help=_help(name, info),
        rich_help_panel=panel,
        envvar=variable_of(name),
        show_envvar=False,
        show_default=False,
        metavar=METAVARS.get(name) or _choices(info.annotation) or _METAVARS[kind],
    )
    if kind is not bool:
        return [_parameter(name, kind, option)]
    off = typer.Option(f"--no-{flag[2:]}", hidden=True)
    return [_parameter(name, kind, option), _parameter(f"{OFF}{name}", kind, off)]


def _help(name: str, info: FieldInfo) -> str:
    default = info.get_default(call_default_factory=True)
    shown = default not in (None, False, {}, ()) and name != "numerics"
    return (info.description or "").strip() + (f" (default {default})" if shown else "")


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _plain_type(name: str, annotation: Any) -> Any:
    """The type that the shell's words are turned into; the Recipe checks the rest."""
    if name in REPEATED:
        return list[str]
    if name in LISTS:
        return str
    for part in _parts(annotation):
        if get_origin(part) is tuple:
            return tuple.__class_getitem__(tuple(_parts(item)[0] for item in get_args(part)))
        if part in (bool, int, float):
            return part
    return str


def _parts(annotation: Any) -> list[Any]:
    """The alternatives of a union, without their constraints."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _parts(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [inner for part in get_args(annotation) for inner in _parts(part)]
    return [annotation]


def _choices(annotation: Any) -> str | None:
    for part in _parts(annotation):
        if get_origin(part) is Literal:
            return "|".join(get_args(part))
    return None


def recipe_of(options: Mapping[str, Any], config: Path | None, preset: str | None = None) -> Recipe:
    """The recipe of a command line: flags and RLPOST_* beat the file, which beats the preset.

    Raises:
        UsageError: as `Recipe.of`; or a pair is not written NAME=VALUE; or there is no such preset.
    """
    values = without_loss(load_toml(config)) if config is not None else {}
    preset = values.pop("preset", None) if preset is None else preset
    given = {
        name: value
        for name, value in options.items()
        if value not in (None, [], ()) and not name.startswith(OFF)
    }
    given |= {name.removeprefix(OFF): False for name in options if _turned_off(name, options)}
    for name in LISTS:
        if name in given:
            given[name] = [word.strip() for word in given[name].split(",") if word.strip()]
    for name in ("columns", "teachers"):
        if name in given:
            given[name] = _table(values, name, config) | name_values(given[name], FLAGS[name])
    if "numerics" in given:
        pairs = name_values(given["numerics"], "--numerics")
        for name in pairs:
            if name not in Numerics.model_fields:
                hint = closest(name, Numerics.model_fields)
                raise UsageError(f"--numerics {name}: no such field{hint}")
        given["numerics"] = _table(values, "numerics", config) | pairs
    origins = dict.fromkeys(values.keys() - given.keys(), str(config))
    own = {**values, **given}
    return Recipe.of(own if preset is None else values_of(preset, own), "command line", origins)


def asked_for(
    options: Mapping[str, Any], config: Path | None, preset: str | None
) -> dict[str, Any]:
    """The preset and the estimator that were asked for, by the names they were asked by.

    A preset may put another estimator, with other norms, in place of the one it is asked for.
    """
    file = load_toml(config) if config is not None else {}
    preset = file.get("preset") if preset is None else preset
    asked = options["estimator"] or file.get("estimator") or usual_estimator(preset or DEFAULT)
    return {"preset": preset, "asked_estimator": asked}


def _turned_off(name: str, options: Mapping[str, Any]) -> bool:
    return name.startswith(OFF) and bool(options[name])


def _table(values: Mapping[str, Any], name: str, config: Path | None) -> dict[str, Any]:
    """A table of the recipe file; anything else is kept for the Recipe to complain of."""
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{config}: {name} is {table!r}: a table [{name}] is needed")
    return table


def name_values(words: list[str], flag: str) -> dict[str, str]:
    """Words of the form NAME=VALUE; raises UsageError on others."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{flag} {word}: write it NAME=VALUE")
        found[name] = value
    return found
