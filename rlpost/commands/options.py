"""Command-line options made from the fields of Recipe, so that the two cannot drift apart."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from rlpost.errors import UsageError
from rlpost.recipe import Numerics, Recipe, load_toml
from rlpost.schema import closest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pydantic.fields import FieldInfo

PANELS = {
    "Estimator": ("estimator", "gamma", "lam"),
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
    "Rewards": ("overlong_penalty", "norm_mean", "norm_std", "reward_clip", "whiten_rewards"),
    "KL": ("kl_coef", "kl_estimator", "kl_target", "kl_horizon"),
    "Advantages": (
        "whiten_advantages",
        "advantage_clip",
        "difficulty_weight",
        "length_weight",
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
FLAGS = {"columns": "--map", "lam": "--lam"}
METAVARS = {
    "columns": "ROLE=COLUMN",
    "numerics": "NAME=VALUE",
    "emit": "A,B,...",
    "overlong_penalty": "MAX_LEN BUFFER FACTOR",
    "estimator": "NAME",
    "rollout_id": "COLUMN",
}


def with_recipe_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a typer command one option per field of Recipe, in place of its `**options`."""
    own = [
        parameter
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    made = [
        _parameter(name, Recipe.model_fields[name], panel)
        for panel, names in PANELS.items()
        for name in names
    ]
    function.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
    return function


def _parameter(name: str, info: FieldInfo, panel: str) -> inspect.Parameter:
    flag = FLAGS.get(name, "--" + name.replace("_", "-"))
    kind = _plain_type(name, info.annotation)
    declared = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    default = info.get_default(call_default_factory=True)
    shown = None if default in (None, False, {}, ()) or name == "numerics" else str(default)
    option = typer.Option(
        declared,
        help=(info.description or "").strip() + (f" [default: {shown}]" if shown else ""),
        rich_help_panel=panel,
        envvar=f"RLPOST_{flag[2:].upper().replace('-', '_')}",
        show_envvar=False,
        show_default=False,
        metavar=METAVARS.get(name) or _choices(info.annotation),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _plain_type(name: str, annotation: Any) -> Any:
    """The type that the shell's words are turned into; the Recipe checks the rest."""
    if name in ("columns", "numerics"):
        return list[str]
    if name == "emit":
        return str
    if name == "overlong_penalty":
        return tuple[int, int, float]
    for part in _parts(annotation):
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


def recipe_of(options: Mapping[str, Any], config: Path | None) -> Recipe:
    """The recipe of a command line: flags and RLPOST_* beat the file, which beats defaults.

    Raises:
        UsageError: as `Recipe.of`; or a pair is not written NAME=VALUE.
    """
    values = load_toml(config) if config is not None else {}
    if config is not None:
        Recipe.of(values, str(config))  # so that what is wrong in the file is said of the file
    given = {name: value for name, value in options.items() if value not in (None, [], ())}
    if "emit" in given:
        given["emit"] = [name.strip() for name in given["emit"].split(",") if name.strip()]
    if "columns" in given:
        given["columns"] = {**values.get("columns", {}), **_pairs(given["columns"], "--map")}
    if "numerics" in given:
        pairs = _pairs(given["numerics"], "--numerics")
        for name in pairs:
            if name not in Numerics.model_fields:
                hint = closest(name, Numerics.model_fields)
                raise UsageError(f"--numerics {name}: no such field{hint}")
        given["numerics"] = {**values.get("numerics", {}), **pairs}
    return Recipe.of({**values, **given}, "command line")


def _pairs(words: list[str], flag: str) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{flag} {word}: write it NAME=VALUE")
        found[name] = value
    return found
