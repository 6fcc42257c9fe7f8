"""Command-line options, each declared once; the types, texts and defaults are those of fields."""

from __future__ import annotations

import inspect
import os
import types
from copy import copy
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from rlpost.cli import completion
from rlpost.cli.arguments import LISTS, Settings
from rlpost.cli.environment import unknown_variables, variable_behind
from rlpost.cli.errors import print_warning
from rlpost.cli.help_screen import (
    ADVANTAGES,
    CORRECTION,
    ESTIMATOR,
    EXECUTION,
    IN_OUT,
    KL,
    LOSS,
    MASKS,
    REWARDS,
    HelpAll,
    Panel,
)
from rlpost.cli.output import silence_warnings
from rlpost.errors import UsageError
from rlpost.recipe.base import Bound
from rlpost.recipe.flags import OF_RUNS, flag_of, variable_of
from rlpost.recipe.loss import ABOUT_AGGREGATIONS, LossOptions, defaults_of, word
from rlpost.recipe.recipe import TABLES, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pydantic import BaseModel

    from rlpost.cli.completion import Completer


@dataclass(frozen=True)
class Declared:
    """How the command line shows a field, beside what the field declares itself."""

    panel: str
    metavar: str | None = None
    """None: the type or the choices of the field."""
    common: bool = False
    """The short help lists it."""
    complete: Completer | None = None


RECIPE: dict[str, Declared] = {
    "estimator": Declared(ESTIMATOR, "NAME", common=True, complete=completion.estimators),
    "options": Declared(ESTIMATOR, "NAME=VALUE"),
    "gamma": Declared(ESTIMATOR),
    "lam": Declared(ESTIMATOR),
    "lambda_policy": Declared(ESTIMATOR),
    "lambda_value": Declared(ESTIMATOR),
    "length_adaptive_alpha": Declared(ESTIMATOR),
    "bootstrap": Declared(ESTIMATOR),
    "scan": Declared(ESTIMATOR),
    "step_gamma": Declared(ESTIMATOR),
    "episode_weight": Declared(ESTIMATOR),
    "step_weight": Declared(ESTIMATOR),
    "f_norm": Declared(ESTIMATOR),
    "ema_decay": Declared(ESTIMATOR),
    "otb_is_cap": Declared(ESTIMATOR),
    "vtrace_rho_cap": Declared(ESTIMATOR),
    "vtrace_c_cap": Declared(ESTIMATOR),
    "episode_domains": Declared(ESTIMATOR, "A,B,..."),
    "teachers": Declared(ESTIMATOR, "COLUMN=WEIGHT", complete=completion.teachers),
    "numerics": Declared(ESTIMATOR, "NAME=VALUE", complete=completion.numerics),
    "reward_components": Declared(REWARDS, "A,B,...", complete=completion.column_list),
    "component_weights": Declared(REWARDS, "W,W,..."),
    "reward_scale": Declared(REWARDS, "LOW HIGH TO_LOW TO_HIGH"),
    "truncation_penalty": Declared(REWARDS),
    "group_length_penalty": Declared(REWARDS, "OUTPUT INPUT TURNS"),
    "overlong_penalty": Declared(REWARDS, "MAX_LEN BUFFER FACTOR"),
    "norm_mean": Declared(REWARDS),
    "norm_std": Declared(REWARDS),
    "reward_clip": Declared(REWARDS, common=True),
    "reward_clip_low": Declared(REWARDS),
    "whiten_rewards": Declared(REWARDS),
    "kl_coef": Declared(KL, common=True),
    "kl_estimator": Declared(KL, common=True),
    "kl_target": Declared(KL),
    "kl_horizon": Declared(KL),
    "drop_zero_variance": Declared(MASKS, common=True),
    "drop_single": Declared(MASKS),
    "drop_truncated": Declared(MASKS, common=True),
    "max_len_mask": Declared(MASKS),
    "max_response_length": Declared(MASKS),
    "difficulty_mask": Declared(MASKS),
    "difficulty_low": Declared(MASKS),
    "difficulty_high": Declared(MASKS),
    "error_max_len_clip": Declared(MASKS),
    "mask_before_norm": Declared(MASKS),
    "whiten_advantages": Declared(ADVANTAGES, common=True),
    "advantage_clip": Declared(ADVANTAGES, common=True),
    "difficulty_weight": Declared(ADVANTAGES),
    "length_weight": Declared(ADVANTAGES),
    "age_decay": Declared(ADVANTAGES),
    "top_entropy_quantile": Declared(ADVANTAGES),
    "is_weight": Declared(CORRECTION),
    "is_cap": Declared(CORRECTION),
    "is_floor": Declared(CORRECTION),
    "is_mask": Declared(CORRECTION, "LOW HIGH"),
    "is_normalise": Declared(CORRECTION),
    "is_filter": Declared(CORRECTION, "LEVEL:MEASURE:LOW:HIGH"),
    "is_filter_where": Declared(CORRECTION),
    "is_policy": Declared(CORRECTION),
    "columns": Declared(IN_OUT, "ROLE=COLUMN", common=True, complete=completion.roles),
    "tokenizer": Declared(IN_OUT, "NAME|PATH"),
    "unit": Declared(IN_OUT),
    "rollout_reward": Declared(IN_OUT),
    "failures": Declared(MASKS),
    "attempts": Declared(MASKS),
    "nonfinite": Declared(IN_OUT),
    "emit": Declared(IN_OUT, "A,B,...", complete=completion.emitted),
    "emit_only": Declared(IN_OUT),
    "replace": Declared(IN_OUT),
    "pass_threshold": Declared(IN_OUT),
}
LOSS_COMMON = ("loss", "pg_clip", "pg_clip_low", "pg_clip_high", "aggregation", "kl_loss_coef")
LOSS_OPTIONS: dict[str, Declared] = {
    name: Declared(LOSS, common=name in LOSS_COMMON) for name in LossOptions.model_fields
} | {
    "loss": Declared(LOSS, "NAME", common=True, complete=completion.losses),
    "loss_options": Declared(LOSS, "NAME=VALUE", common=True),
    "dual_clip": Declared(LOSS, "FLOAT|twice|never"),
    "aggregation": Declared(
        LOSS, "NAME", common=True, complete=lambda: [*ABOUT_AGGREGATIONS.items()]
    ),
    "kl_loss_aggregation": Declared(LOSS, "NAME", complete=lambda: [*ABOUT_AGGREGATIONS.items()]),
}
MOST_DEFAULT = 24
"""Characters of a default; longer ones, which differ by loss, are in `rlpost losses`."""
REPEATED = (*TABLES, "is_filter", "loss_options")
RUN = ("preset", "config", "correction", *OF_RUNS)
"""Options that environment variables set, beside those of the recipe and the loss."""
_METAVARS = {bool: "", int: "INT", float: "FLOAT", str: "TEXT"}


class OutputFormat(Enum):
    """The output formats of commands that only read."""

    table = "table"
    json = "json"
    markdown = "markdown"


class FindingSeverity(Enum):
    """The least severity of findings that fail a command."""

    error = "error"
    warning = "warning"


class CountedUnits(Enum):
    """What statistics of responses count."""

    row = "row"
    rollout = "rollout"


class RolloutRewards(Enum):
    """The reward of a rollout whose rows have different rewards."""

    equal = "equal"
    last = "last"
    sum = "sum"
    mean = "mean"


def option(
    *flags: str,
    help: str,  # noqa: A002 - typer's name for it
    panel: str = IN_OUT,
    common: bool = True,
    metavar: str | None = None,
    variable: bool = False,
    complete: Completer | None = None,
    **others: Any,
) -> Any:
    """Return the declaration of an option that is no field of a recipe.

    Args:
        flags: as typed, the long one first.
        help: what it does, without its default.
        panel: the heading of its group.
        common: the short help lists it.
        metavar: the value as help shows it; None for flags and enumerations.
        variable: an RLPOST_* variable sets it, too.
        complete: offers values to the shell.
        others: as typer.Option.
    """
    return typer.Option(
        *flags,
        help=help,
        rich_help_panel=Panel(panel, common=common),
        metavar=metavar,
        envvar=variable_of(flags[0][2:].replace("-", "_")) if variable else None,
        show_envvar=False,
        autocompletion=complete or completion.choices_of(metavar),
        **others,
    )


# Options of several commands.
Preset = Annotated[
    str | None,
    option(
        "--preset",
        metavar="NAME",
        panel=ESTIMATOR,
        variable=True,
        complete=completion.presets,
        help="Compute as this framework does (see `rlpost presets`).",
    ),
]
CorrectionName = Annotated[
    str | None,
    option(
        "--correction",
        common=False,
        metavar="FRAMEWORK:NAME",
        panel=CORRECTION,
        variable=True,
        complete=completion.corrections,
        help="A framework's named correction (see `rlpost help pipeline`).",
    ),
]
Config = Annotated[
    Path | None,
    option("--config", metavar="PATH", panel=ESTIMATOR, variable=True, help="Recipe file (TOML)."),
]
Map = Annotated[
    list[str] | None,
    option(
        "--map",
        metavar="ROLE=COLUMN",
        complete=completion.roles,
        help="Column to read for a role (default: found by its name).",
    ),
]
Where = Annotated[
    str | None,
    option(
        "--where",
        metavar="EXPR",
        help="Rows to read, as \"reward > 0 and domain = 'math'\".",
    ),
]
Overwrite = Annotated[bool, option("--overwrite", help="Replace OUT if it exists.")]
SummaryJson = Annotated[
    str | None,
    option("--summary-json", metavar="PATH", help="Write the summary as JSON; - is stdout."),
]
Output = Annotated[OutputFormat, option("--format", help="Output format on stdout.")]
Quiet = Annotated[bool, option("--quiet", "-q", panel=EXECUTION, help="Print errors only.")]
Verbose = Annotated[
    bool,
    option("--verbose", "-v", panel=EXECUTION, help="Print times, storage and all tables, too."),
]
Device = Annotated[
    str,
    option(
        "--device",
        metavar="auto|cpu|cuda[:N]|...",
        panel=EXECUTION,
        variable=True,
        help="Device, see `rlpost help gpu`.",
    ),
]
ChunkTokens = Annotated[
    int | None,
    option(
        "--chunk-tokens",
        metavar="INT",
        panel=EXECUTION,
        common=False,
        variable=True,
        min=1,
        help="Approximate tokens per chunk (default: fits the device).",
    ),
]
Workers = Annotated[
    int | None,
    option(
        "--workers",
        metavar="INT",
        panel=EXECUTION,
        common=False,
        variable=True,
        min=1,
        help="Threads (default: one per core, at most 8).",
    ),
]
MaxMemory = Annotated[
    str | None,
    option(
        "--max-memory",
        metavar="SIZE",
        panel=EXECUTION,
        common=False,
        variable=True,
        help="Memory to use: 4GB, 500MB, 50% (default: 75% of the machine's).",
    ),
]
State = Annotated[
    Path | None,
    option(
        "--state",
        metavar="PATH",
        panel=REWARDS,
        common=False,
        help="JSON: running statistics, adaptive KL; loaded and saved.",
    ),
]
NamedEstimator = Annotated[
    str | None,
    option(
        "--estimator",
        metavar="NAME",
        help="Run this estimator, if metadata names code.",
        complete=completion.estimators,
    ),
]
NamedTokenizer = Annotated[
    str | None,
    option("--tokenizer", metavar="NAME|PATH", help="Use this tokenizer, if metadata names one."),
]
Unit = Annotated[
    CountedUnits | None,
    option("--unit", help="Count rows or rollouts in statistics of responses."),
]
RolloutReward = Annotated[
    RolloutRewards,
    option("--rollout-reward", help="Reward of a rollout whose rows differ."),
]
PassThreshold = Annotated[
    float,
    option("--pass-threshold", metavar="FLOAT", help="Raw reward at which a response passes."),
]


FailOn = Annotated[
    FindingSeverity | None,
    option("--fail-on", help="Exit with code 1 if there are such findings."),
]


def with_recipe_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace the `settings` of a command by --preset, --config and an option for each field.

    The command first warns about RLPOST_* variables that set nothing.
    """
    own = inspect.signature(function, eval_str=True).parameters

    @wraps(function)
    def run(
        context: typer.Context,
        preset: str | None,
        config: Path | None,
        correction: str | None,
        **values: Any,
    ) -> None:
        if values.get("quiet"):
            silence_warnings()
        else:
            for text in unknown_variables(os.environ, (*RECIPE, *LOSS_OPTIONS, *RUN)):
                print_warning(text)
        variables = {name: by for name in values if (by := variable_behind(context, name))}
        fields = {name: x for name, x in values.items() if name not in (own.keys() & {*RECIPE})}
        settings = Settings(fields, config, preset, variables, correction)
        if settings.correction.loss and "loss" not in values:
            name = f"--correction {settings.correction_name}"
            text = f"{name}: it sets the policy loss, too, which this command does not compute"
            raise UsageError(text, tip=f"rlpost loss IN {name}")
        every = {"context": context, "settings": settings, **values}
        function(**{name: every[name] for name in own})

    shared = [_parameter("preset", Preset), _parameter("config", Config)]
    shared.append(_parameter("correction", CorrectionName))
    _replace_signature(run, function, [*_fields(Recipe, RECIPE), *shared])
    return run


def reads_data(function: Callable[..., None]) -> Callable[..., None]:
    """Add --max-memory to a command, which runs under that limit."""

    @wraps(function)
    def run(max_memory: str | None, **values: Any) -> None:
        from rlpost.io.memory_limit import limited_memory  # noqa: PLC0415 - help needs no limit

        with limited_memory(max_memory):
            function(**values)

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
    ]
    limit = _parameter("max_memory", MaxMemory)
    run.__signature__ = inspect.Signature([*own, limit])  # type: ignore[attr-defined]
    return run


def with_component_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace the `settings` of a command by the options of reward components."""
    names = ("reward_components", "component_weights")
    own = inspect.signature(function, eval_str=True).parameters

    @wraps(function)
    def run(**values: Any) -> None:
        settings = Settings({name: values[name] for name in names})
        every = {**values, "settings": settings}
        function(**{name: every[name] for name in own})

    options = _fields(Recipe, {name: RECIPE[name] for name in names})
    _replace_signature(run, function, options)
    return run


def with_loss_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each field of LossOptions to a command with recipe options.

    The short help then lists fewer options of the recipe.
    """
    options = _fields(LossOptions, LOSS_OPTIONS)
    _replace_signature(function, function, options, uncommon=(REWARDS, KL, MASKS, ADVANTAGES))
    return function


def _replace_signature(
    target: Callable[..., None],
    source: Callable[..., None],
    options: list[inspect.Parameter],
    uncommon: Collection[str] = (),
) -> None:
    """Set the signature that typer reads.

    Args:
        target: the function whose signature is set.
        source: the function whose parameters it has, except `settings`.
        options: its other parameters; one of the same name is left out.
        uncommon: panels of `source` that the short help leaves out.
    """
    own = [
        _uncommon(parameter, uncommon).replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(source, eval_str=True).parameters.values()
        if parameter.name != "settings"
    ]
    common = {"context": (typer.Context, inspect.Parameter.empty), "help_all": (HelpAll, False)}
    extra = [
        _parameter(name, annotation, default)
        for name, (annotation, default) in common.items()
        if name not in {parameter.name for parameter in own}
    ]
    names = {parameter.name for parameter in own}
    shared = [one for one in options if one.name not in names]
    target.__signature__ = inspect.Signature([*shared, *own, *extra])  # type: ignore[attr-defined]


def _uncommon(parameter: inspect.Parameter, panels: Collection[str]) -> inspect.Parameter:
    """Return the parameter; if it is in one of the panels, without a place in the short help."""
    kind, *declarations = get_args(parameter.annotation) or (None,)
    if not declarations or getattr(declarations[0], "rich_help_panel", None) not in panels:
        return parameter
    declaration: Any = copy(declarations[0])
    declaration.rich_help_panel = Panel(declaration.rich_help_panel)
    return parameter.replace(annotation=Annotated[kind, declaration])


def _fields(model: type[BaseModel], declared: Mapping[str, Declared]) -> list[inspect.Parameter]:
    """Return the options of a model's fields, in the order of their declarations."""
    hints = get_type_hints(model, include_extras=True)
    return [_field(model, name, hints[name], shown) for name, shown in declared.items()]


def _field(model: type[BaseModel], name: str, hint: Any, shown: Declared) -> inspect.Parameter:
    """Return the option of a field; None is its value unless it is typed or a variable sets it."""
    flag, kind = flag_of(name), _kind(name, hint)
    metavar = shown.metavar or _choices(hint) or _METAVARS.get(kind)
    declaration = typer.Option(
        f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
        help=_help(model, name),
        rich_help_panel=Panel(shown.panel, common=shown.common),
        envvar=variable_of(name),
        show_envvar=False,
        show_default=False,
        metavar=metavar,
        autocompletion=shown.complete or completion.choices_of(metavar),
    )
    return _parameter(name, Annotated[kind | None, declaration])


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _help(model: type[BaseModel], name: str) -> str:
    """Return the description of a field with its default."""
    info = model.model_fields[name]
    text = " ".join((info.description or "").split())
    default = info.get_default(call_default_factory=True)
    usual = defaults_of(name) if model is LossOptions else ""
    if len(usual) > MOST_DEFAULT:
        usual = "by loss, see rlpost losses"
    if not usual and default not in (None, False, {}, ()) and name != "numerics":
        usual = word(default)
    if not usual or "(default" in text:
        return text
    return f"{text.removesuffix('.')} (default: {usual})."


def _kind(name: str, hint: Any) -> Any:
    """Return the type that the shell's words are converted to; the model checks the rest."""
    if name in REPEATED:
        return list[str]
    if name in LISTS:
        return str
    parts = _parts(hint)
    for part in parts:
        if get_origin(part) is tuple:
            return tuple.__class_getitem__(tuple(_parts(item)[0] for item in get_args(part)))
    numbers = [part for part in parts if part in (bool, int, float)]
    words = any(part == Bound or get_origin(part) is Literal for part in parts)
    return numbers[0] if numbers and not words else str


def _choices(hint: Any) -> str | None:
    """Return the values of a field that takes words, as `FLOAT|never` or `k1|abs`."""
    parts = _parts(hint)
    if Bound in parts:
        return "FLOAT|never"
    for part in parts:
        if metavar := getattr(part, "metavar", None):
            return str(metavar)
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    return "|".join(words) or None


def _parts(hint: Any) -> list[Any]:
    """Return the alternatives of a union without their constraints; a Bound stays one."""
    if hint == Bound:
        return [hint]
    origin = get_origin(hint)
    if origin is Annotated:
        return _parts(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return [inner for part in get_args(hint) for inner in _parts(part)]
    return [hint]
