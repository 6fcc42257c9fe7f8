"""Command-line options, each declared once; the types, texts and defaults are those of fields."""

from __future__ import annotations

import inspect
import os
import types
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from rlpost.cli import completion
from rlpost.cli.arguments import Settings
from rlpost.cli.environment import unknown_variables, variable_behind
from rlpost.cli.errors import print_warning
from rlpost.cli.help_screen import (
    ADVANTAGES,
    CORRECTION,
    ESTIMATOR,
    EXECUTION,
    IN_OUT,
    KL,
    MASKS,
    REWARDS,
    HelpAll,
    Panel,
)
from rlpost.cli.output import silence_warnings
from rlpost.errors import UsageError
from rlpost.recipe.base import InHelp, choices_in
from rlpost.recipe.flags import OF_RUNS, field_of, flag_of, variable_of
from rlpost.recipe.loss import LossOptions, word
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from rlpost.cli.completion import Completer
    from rlpost.recipe.base import OptionModel


COMPLETERS: dict[str, Completer] = {
    "estimator": completion.estimators,
    "teachers": completion.teachers,
    "numerics": completion.numerics,
    "options": completion.options,
    "reward_components": completion.column_list,
    "columns": completion.roles,
    "emit": completion.emitted,
    "loss": completion.losses,
    "aggregation": completion.aggregations,
    "kl_loss_aggregation": completion.aggregations,
    "sweep": completion.sweeps,
    "preset": completion.presets,
    "correction": completion.corrections,
    "set": completion.fields,
    "column": completion.column,
    "from": completion.formats,
    "to": completion.targets,
    "about": completion.topics,
    "ignore": completion.checks,
}
"""What the shell offers for an option, by its field or name, beside the words of its type."""
OF_PRESETS = ("estimator_name",)
"""Fields that presets alone set."""
WIDEST_CHOICES = 60
"""Characters of the words that help shows as the value of an option."""
RUN = ("preset", "config", "correction", *OF_RUNS)
"""Options that environment variables set, beside those of the recipe and the loss."""
_METAVARS = {dict: "NAME=VALUE", tuple: "A,B,...", bool: "", int: "INT", float: "FLOAT"}


def option(
    flags: str,
    metavar: str,
    text: str,
    *,
    panel: str = IN_OUT,
    common: bool = True,
    variable: bool = False,
    **others: Any,
) -> Any:
    """Return the declaration of an option that is no field of a recipe.

    Args:
        flags: as typed, with blanks between them, the long one first.
        metavar: the value as help shows it; empty for flags and choices.
        text: what it does, for help, without its default.
        panel: the heading of its group.
        common: the short help lists it.
        variable: an RLPOST_* variable sets it, too.
        others: as typer.Option.
    """
    names = flags.split()
    field = field_of(names[0])
    return typer.Option(
        *names,
        help=text,
        rich_help_panel=Panel(panel, common=common),
        metavar=metavar or None,
        envvar=variable_of(field) if variable else None,
        show_envvar=False,
        autocompletion=COMPLETERS.get(field) or completion.choices_of(metavar),
        **others,
    )


def field_option(
    model: type[OptionModel], name: str, panel: str = IN_OUT, *, common: bool = True
) -> Any:
    """Return the declaration of an option for a field; the model parses its value."""
    kinds = _kinds_of(model, name)
    flag, metavar = flag_of(name), _metavar(kinds)
    return typer.Option(
        f"{flag}/--no-{flag[2:]}" if _typer_kind(kinds) is bool else flag,
        help=_help(model, name),
        rich_help_panel=Panel(panel, common=common),
        envvar=variable_of(name),
        show_envvar=False,
        show_default=False,
        metavar=metavar,
        autocompletion=COMPLETERS.get(name) or completion.choices_of(metavar),
    )


def _kinds_of(model: type[OptionModel], name: str) -> list[Any]:
    """Return the types of a field, and their metadata."""
    info = model.model_fields[name]
    return [*_kinds(info.annotation), *info.metadata]


def _help(model: type[OptionModel], name: str) -> str:
    """Return the description of a field with its default."""
    info = model.model_fields[name]
    text = " ".join((info.description or "").split())
    default = info.get_default(call_default_factory=True)
    usual = ""
    if model is LossOptions and default is None and "default" not in text:
        usual = "by loss, see rlpost list losses"
    elif default not in (None, False, {}, ()) and name != "numerics":
        usual = word(default)
    if not usual or "(default" in text:
        return text
    return f"{text.removesuffix('.')} (default: {usual})."


def _typer_kind(kinds: list[Any]) -> Any:
    """Return how the shell's words are taken: a flag, words, or texts, which the model parses."""
    origins = [get_origin(kind) for kind in kinds]
    if dict in origins or any(isinstance(kind, InHelp) and kind.repeated for kind in kinds):
        return list[str]
    if tuple in origins:
        items = get_args(kinds[origins.index(tuple)])
        return str if Ellipsis in items else tuple.__class_getitem__((str,) * len(items))
    return bool if bool in kinds and Literal not in origins else str


def _metavar(kinds: list[Any]) -> str:
    """Return the value of an option in help: that of its field or type, or its words."""
    declared = next(filter(None, (getattr(kind, "metavar", "") for kind in kinds)), None)
    if declared:
        return str(declared)
    words = "|".join(str(word) for kind in kinds for word in choices_in(kind))
    if words:
        return words if len(words) <= WIDEST_CHOICES else "NAME"
    types_ = [get_origin(kind) or kind for kind in kinds]
    return next((text for kind, text in _METAVARS.items() if kind in types_), "TEXT")


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the types of an annotation and their metadata, without those in lists and tables."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _kinds(parts[0])
        yield from parts[1:]
    elif origin in (Union, types.UnionType):
        yield from (kind for part in parts for kind in _kinds(part))
    else:
        yield dict[str, Any] if hasattr(annotation, "model_fields") else annotation


# Options of several commands.
_machine = partial(option, panel=EXECUTION, common=False, variable=True)
_named = partial(option, panel=ESTIMATOR, variable=True)
Preset = Annotated[
    str | None,
    _named("--preset", "NAME", "Compute as this framework does (see `rlpost list presets`)."),
]
CorrectionName = Annotated[
    str | None,
    option(
        "--correction", "FRAMEWORK:NAME",
        "A framework's correction (see `rlpost help correction`).",
        panel=CORRECTION, common=False, variable=True,
    ),
]  # fmt: skip
Config = Annotated[Path | None, _named("--config", "PATH", "Recipe file (TOML).")]
Assigned = Annotated[
    list[str] | None,
    option(
        "--set", "FIELD=VALUE", "Field of the recipe: gamma=0.9, numerics.single=raw.",
        panel=ESTIMATOR, common=False,
    ),
]  # fmt: skip
Map = Annotated[
    list[str] | None,
    option("--map", "ROLE=COLUMN", "Column, or field of dumps, for a role (default: by name)."),
]
Where = Annotated[
    str | None, option("--where", "EXPR", "Rows to read, as \"reward > 0 and domain = 'math'\".")
]
_dumps = partial(option, common=False)
From = Annotated[
    str | None,
    _dumps("--from", "NAME", "Format of dumps (see `rlpost list dumps`)."),
]
Rows = Annotated[
    str | None, _dumps("--rows", "PATH", "List of the responses in a record of dumps, as a.b.")
]
GroupSize = Annotated[
    int | None,
    _dumps("--group-size", "INT", "Consecutive records per group of dumps without an id.", min=1),
]
Overwrite = Annotated[bool, option("--overwrite", "", "Replace OUT if it exists.")]
SummaryJson = Annotated[
    str | None, option("--summary-json", "PATH", "Write the summary as JSON; - is stdout.")
]
Output = Annotated[
    Literal["table", "json", "markdown"], option("--format", "", "Output format on stdout.")
]
Quiet = Annotated[bool, option("--quiet -q", "", "Print errors only.", panel=EXECUTION)]
Verbose = Annotated[
    bool, option("--verbose -v", "", "Print times, storage and all tables, too.", panel=EXECUTION)
]
Device = Annotated[
    str,
    _machine("--device", "auto|cpu|cuda[:N]|...", "Device, see `rlpost help gpu`.", common=True),
]
ChunkTokens = Annotated[
    int | None,
    _machine("--chunk-tokens", "INT", "Approximate tokens per chunk (default: 524288).", min=1),
]
Workers = Annotated[
    int | None, _machine("--workers", "INT", "Threads (default: one per core, at most 8).", min=1)
]
MaxMemory = Annotated[
    str | None,
    _machine(
        "--max-memory", "SIZE", "Memory to use: 4GB, 500MB, 50% (default: 75% of the machine's)."
    ),
]
State = Annotated[
    Path | None,
    option(
        "--state", "PATH", "JSON: running statistics, adaptive KL; loaded and saved.",
        panel=REWARDS, common=False,
    ),
]  # fmt: skip
NamedEstimator = Annotated[
    str | None, option("--estimator", "NAME", "Run this estimator, if metadata names code.")
]
NamedTokenizer = Annotated[
    str | None, option("--tokenizer", "NAME|PATH", "Use this tokenizer, if metadata names one.")
]
Unit = Annotated[
    Literal["row", "rollout"] | None,
    option("--unit", "", "Count rows or rollouts in statistics of responses."),
]
RolloutReward = Annotated[
    Literal["equal", "last", "sum", "mean"],
    option("--rollout-reward", "", "Reward of a rollout whose rows differ.", common=False),
]
Failures = Annotated[
    Literal["drop", "mask", "keep", "zero"],
    option("--failures", "", "Failed responses: out, counted or 0."),
]
Attempts = Annotated[
    Literal["all", "newest"],
    option("--attempts", "", "Attempts that count."),
]
PassThreshold = Annotated[
    float, option("--pass-threshold", "FLOAT", "Raw reward at which a response passes.")
]
Components = Annotated[str | None, field_option(Recipe, "reward_components")]
Weights = Annotated[str | None, field_option(Recipe, "component_weights", common=False)]
FailOn = Annotated[
    Literal["error", "warning"] | None,
    option("--fail-on", "", "Exit with code 1 if there are such findings."),
]


def with_recipe_options(
    *, loss: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces the `settings` of a command by options for each field.

    They are those of Recipe, --preset, --config and --correction, and with `loss` those of
    LossOptions; the short help then lists fewer options of the recipe. The command first warns
    about RLPOST_* variables that set nothing.
    """

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(function, eval_str=True).parameters

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
                known = (*Recipe.model_fields, *LossOptions.model_fields, *RUN)
                for text in unknown_variables(os.environ, known):
                    print_warning(text)
            variables = {name: by for name in values if (by := variable_behind(context, name))}
            settings = Settings(values, config, preset, variables, correction)
            if settings.correction.loss and not loss:
                name = f"--correction {settings.correction_name}"
                text = f"{name}: it sets the policy loss, too, which this command does not compute"
                raise UsageError(text, tip=f"rlpost loss IN {name}")
            arguments = {"context": context, "settings": settings, **values}
            function(**{name: arguments[name] for name in parameters})

        options = [*_fields(Recipe, uncommon=(REWARDS, KL, MASKS, ADVANTAGES) if loss else ())]
        options += [
            _parameter("preset", Preset),
            _parameter("config", Config),
            _parameter("correction", CorrectionName),
            _parameter("assigned", Assigned),
            *(_fields(LossOptions) if loss else ()),
        ]
        left = [name for name in parameters if name not in ("context", "settings")]
        context = _parameter("context", typer.Context, inspect.Parameter.empty)
        help_all = _parameter("help_all", HelpAll, default=False)
        _set_signature(run, [*options, *(parameters[name] for name in left), context, help_all])
        return run

    return decorated


def reads_data(function: Callable[..., None]) -> Callable[..., None]:
    """Add --max-memory to a command, which runs under that limit."""

    @wraps(function)
    def run(max_memory: str | None, **values: Any) -> None:
        from rlpost.io.memory_limit import limited_memory  # noqa: PLC0415 - help needs no limit

        with limited_memory(max_memory):
            function(**values)

    parameters = inspect.signature(function, eval_str=True).parameters.values()
    _set_signature(run, [*parameters, _parameter("max_memory", MaxMemory)])
    return run


def _set_signature(function: Any, parameters: list[inspect.Parameter]) -> None:
    """Set the signature that typer reads."""
    named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    function.__signature__ = inspect.Signature(named)


def _fields(
    model: type[OptionModel], *, uncommon: Collection[str] = ()
) -> Iterator[inspect.Parameter]:
    """Yield the options of a model's fields; the short help has none of some panels."""
    panel = ""
    for name in model.model_fields:
        panel = model.panels.get(name, panel)
        if name in OF_PRESETS:
            continue
        kinds = _kinds_of(model, name)
        common = panel not in uncommon and any(
            isinstance(kind, InHelp) and kind.common for kind in kinds
        )
        declaration = field_option(model, name, panel, common=common)
        yield _parameter(name, Annotated[_typer_kind(kinds) | None, declaration])


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
