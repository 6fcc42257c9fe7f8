"""Command-line options, whose names, types, texts and defaults are those of fields and functions.

`options_of` adds to a command the keyword-only parameters of a function of `rlpost`, fields of
`Options`, and those of a recipe. Only what is part of no number and no function is declared here.
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from rlpost.cli import completion
from rlpost.cli.arguments import Settings, components_of, name_values
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
    RAY,
    REWARDS,
    Panel,
)
from rlpost.cli.output import silence_warnings, summary_beside
from rlpost.errors import UsageError
from rlpost.pipeline.options import Options
from rlpost.recipe import functions as recipe_functions
from rlpost.recipe.base import InHelp, choices_in, wrong_value
from rlpost.recipe.flags import OF_RUNS, field_of, flag_of, variable_of
from rlpost.recipe.loss import LossOptions, word
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from rlpost.cli.completion import Completer
    from rlpost.recipe.base import OptionModel
    from rlpost.recipe.functions import Option

COMPLETERS: dict[str, Completer] = {
    "estimator": completion.of_kind("estimators"),
    "numerics": completion.fields(Numerics),
    "options": completion.options,
    "reward_components": completion.column_list,
    "columns": completion.roles,
    "columns_map": completion.roles,
    "emit": completion.emitted,
    "loss": completion.of_kind("losses"),
    "sweep": completion.fields(LossOptions),
    "preset": completion.of_kind("presets"),
    "correction": completion.corrections,
    "column": completion.column,
    "source": completion.of_kind("dumps"),
    "to": completion.of_kind("targets"),
    "about": completion.topics,
    "ignore": completion.of_kind("checks"),
}
"""What the shell offers for an option, by its field or name, beside the words of its type."""
OF_PRESETS = ("estimator_name",)
"""Fields that presets alone set."""
WIDEST_CHOICES = 60
"""Characters of the words that help shows as the value of an option."""
RUN = ("preset", "config", "correction", *OF_RUNS)
"""Options that environment variables set, beside those of the recipe and the loss."""
FLAGS = {
    "columns_map": "--map", "source": "--from", "sample_tokens": "--sample", "count": "--count -n",
}  # fmt: skip
"""Options that are not called like the parameter of the function."""
COMPONENTS = ("reward_components", "component_weights")
RARE = {
    *("source", "rows", "group_size", "state", "chunk_tokens", "workers", "max_memory", "engine"),
    *("ray_address", "log_map"),
}
"""Options of functions and runs that the short help has not."""
_PANELS = {
    **dict.fromkeys(
        ("skip_existing", "device", "chunk_tokens", "workers", "max_memory"), EXECUTION
    ),
    **dict.fromkeys(("engine", "ray_address"), RAY),
    "estimator": ESTIMATOR,
    "state": REWARDS,
}
_METAVARS = {
    dict: "NAME=VALUE", tuple: "A,B,...", bool: "", int: "INT", float: "FLOAT", Path: "PATH",
}  # fmt: skip


def option(
    flags: str,
    metavar: str,
    text: str,
    *,
    panel: str = IN_OUT,
    common: bool = True,
    variable: bool = False,
    name: str = "",
    **others: Any,
) -> Any:
    """Return the declaration of an option.

    Args:
        flags: as typed, with blanks between them, the long one first.
        metavar: the value as help shows it; empty for flags and choices.
        text: what it does, for help, with its default.
        panel: the heading of its group.
        common: the short help lists it.
        variable: an RLPOST_* variable sets it, too.
        name: of the field, or of the parameter of a function; empty: that of the flag.
        others: as typer.Option.
    """
    names = flags.split()
    name = name or field_of(names[0])
    return typer.Option(
        *names,
        help=text,
        rich_help_panel=Panel(panel, common=common),
        metavar=metavar or None,
        envvar=variable_of(name) if variable else None,
        show_envvar=False,
        show_default=False,
        autocompletion=COMPLETERS.get(name) or completion.choices_of(metavar),
        **others,
    )


def _parameter(name: str, kinds: Sequence[Any], text: str, **settings: Any) -> inspect.Parameter:
    """Return the parameter that typer reads for a field, or for a parameter of a function.

    Args:
        name: of the field.
        kinds: its types and their metadata, as of `_kinds`.
        text: for help.
        settings: as of `option`.
    """
    long, *short = FLAGS.get(name, flag_of(name)).split()
    kind = _typer_kind(kinds)
    flags = " ".join([f"{long}/--no-{long[2:]}" if kind is bool else long, *short])
    declaration = option(flags, _metavar(kinds), text, name=name, **settings)
    return _keyword(name, Annotated[kind | None, declaration])


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _fields(
    model: type[OptionModel],
    *,
    uncommon: Collection[str] = (),
    names: Collection[str] = (),
    without: Collection[str] = (),
    variable: bool = True,
) -> Iterator[inspect.Parameter]:
    """Yield the options of a model's fields.

    Args:
        model: Recipe or LossOptions.
        uncommon: panels of which the short help has none.
        names: of the fields; empty: all.
        without: fields that are no options.
        variable: an RLPOST_* variable sets each, too.
    """
    panel = ""
    for name, info in model.model_fields.items():
        panel = model.panels.get(name, panel)
        if name in (*OF_PRESETS, *without) or (names and name not in names):
            continue
        kinds = [*_kinds(info.annotation), *info.metadata]
        common = panel not in uncommon and any(
            isinstance(kind, InHelp) and kind.common for kind in kinds
        )
        default = info.get_default(call_default_factory=True)
        text = " ".join((info.description or "").split())
        if model is LossOptions and default is None and "default" not in text:
            default = "by loss, see rlpost list losses"
        text = _with_default(text, None if name == "numerics" else default)
        heading = IN_OUT if names else panel
        yield _parameter(name, kinds, text, panel=heading, common=common, variable=variable)


def _of_functions(options: Iterable[Option]) -> Iterator[inspect.Parameter]:
    """Yield the options of the parameters of functions, and of fields of `Options`.

    The help is the first clause of their text.
    """
    for entry in options:
        clause = entry.text.partition("; ")[0].rstrip(".")
        text = _with_default(f"{clause[:1].upper()}{clause[1:]}.", entry.default)
        panel, common = _PANELS.get(entry.name, IN_OUT), entry.name not in RARE
        variable, kinds = entry.name in OF_RUNS, [*_kinds(entry.kind)]
        yield _parameter(entry.name, kinds, text, panel=panel, common=common, variable=variable)


def _with_default(text: str, default: Any) -> str:
    """Return a description with its default."""
    if default in (None, False, {}, ()) or "(default" in text:
        return text
    shown = "yes" if default is True else word(default)
    return f"{text.removesuffix('.')} (default: {shown})."


def _typer_kind(kinds: Sequence[Any]) -> Any:
    """Return how the shell's words are taken: a flag, words, or texts, which pydantic parses."""
    origins = [get_origin(kind) for kind in kinds]
    many = any(isinstance(kind, InHelp) and kind.repeated for kind in kinds)
    if many or {dict, Mapping, Sequence} & {*origins}:
        return list[str]
    if tuple in origins:
        items = get_args(kinds[origins.index(tuple)])
        return str if Ellipsis in items else tuple.__class_getitem__((str,) * len(items))
    return bool if bool in kinds and Literal not in origins else str


def _metavar(kinds: Sequence[Any]) -> str:
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
Preset = Annotated[
    str | None,
    option(
        "--preset", "NAME", "Compute as this framework does (see `rlpost list presets`).",
        panel=ESTIMATOR, variable=True,
    ),
]  # fmt: skip
CorrectionName = Annotated[
    str | None,
    option(
        "--correction", "FRAMEWORK:NAME",
        "A framework's correction (see `rlpost help correction`).",
        panel=CORRECTION, common=False, variable=True,
    ),
]  # fmt: skip
Config = Annotated[
    Path | None,
    option("--config", "PATH", "Recipe file (TOML).", panel=ESTIMATOR, variable=True),
]
SummaryJson = Annotated[
    str | None, option("--summary-json", "PATH", "Write the summary as JSON; - is stdout.")
]
Output = Annotated[
    Literal["table", "json", "markdown"],
    option("--format", "", "Output format on stdout (default: table)."),
]
Quiet = Annotated[bool, option("--quiet -q", "", "Print errors only.", panel=EXECUTION)]
Verbose = Annotated[
    bool, option("--verbose -v", "", "Print times, storage and all tables, too.", panel=EXECUTION)
]
FailOn = Annotated[
    Literal["error", "warning"] | None,
    option("--fail-on", "", "Exit with code 1 if there are such findings."),
]


def options_of(
    function: Callable[..., Any] | None = None,
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
    runs: Collection[str] = (),
    recipe: bool = False,
    loss: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds options to a command, whose parameters of these names get them.

    `chosen` gets the values of the function's parameters, `run` those of `Options`, `settings` the
    recipe's; `typed` what was typed, of a command with several recipes, which no variable sets. A
    command with a function has --max-memory, and runs under that limit.

    Args:
        function: its keyword-only parameters are options, but those that the command has itself.
        only: of the function's parameters; empty: all.
        without: of the function's parameters, and fields of the recipe.
        runs: fields of `Options`.
        recipe: the fields of a recipe, --preset, --config, --correction, and a warning about
            RLPOST_* variables that set nothing.
        loss: also the fields of a loss; the short help then lists fewer options of the recipe.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command, eval_str=True).parameters
        fields = {"progress", *parameters, *without, *COMPONENTS}
        options = _parameters_of(function, fields) if function else {}
        options = {name: entry for name, entry in options.items() if not only or name in only}
        of_runs = {name: _of_runs()[name] for name in (*runs, *["max_memory"] * bool(function))}
        components = function is not None and not recipe and _takes_components(function, only)

        @wraps(command)
        def run(context: typer.Context, **typed: Any) -> None:
            from rlpost.io.memory_limit import check_addresses, limited_memory  # noqa: PLC0415

            check_addresses()
            values = {"context": context, "typed": typed, **typed}
            if "settings" in parameters:
                values["settings"] = _settings(context, typed, loss=loss)
            values["chosen"] = {
                name: _parsed(entry, typed[name]) for name, entry in options.items()
            }
            if components:
                values["chosen"]["reward_components"] = components_of(*map(typed.get, COMPONENTS))
            settings = {name: _parsed(entry, typed[name]) for name, entry in of_runs.items()}
            with limited_memory(settings.pop("max_memory", None)), summary_beside(typed):
                values["run"] = Options(**settings)
                command(**{name: values[name] for name in parameters})

        given = ("context", "settings", "typed", "chosen", "run")
        uncommon = (REWARDS, KL, MASKS, ADVANTAGES) if loss else ()
        of_recipes = _fields(Recipe, uncommon=uncommon, without=(*without, *parameters),
                             variable="settings" in parameters)  # fmt: skip
        added = [
            *(of_recipes if recipe else ()),
            *(_keyword(*pair) for pair in _OF_RECIPES * recipe if pair[0] not in parameters),
            *(_fields(LossOptions) if loss else ()),
            *(x.replace(kind=x.KEYWORD_ONLY) for x in parameters.values() if x.name not in given),
            *_of_functions(options.values()),
            *(_fields(Recipe, names=COMPONENTS) if components else ()),
            *_of_functions(of_runs.values()),
            _keyword("context", typer.Context, inspect.Parameter.empty),
        ]
        run.__signature__ = inspect.Signature(added)  # type: ignore[attr-defined]
        return run

    return decorated


_OF_RECIPES = (
    ("preset", Preset), ("config", Config), ("correction", CorrectionName),
)  # fmt: skip


def _parameters_of(function: Callable[..., Any], without: Collection[str]) -> dict[str, Option]:
    return recipe_functions.options_of((function,), without)


@cache
def _of_runs() -> dict[str, Option]:
    return _parameters_of(Options, {"reporter", "asked", "started"})


def _takes_components(function: Callable[..., Any], only: Collection[str]) -> bool:
    return not only and COMPONENTS[0] in inspect.signature(function).parameters


def _settings(context: typer.Context, typed: Mapping[str, Any], *, loss: bool) -> Settings:
    """Return the settings of a command line; warn about variables that set nothing."""
    if typed.get("quiet"):
        silence_warnings()
    else:
        known = (*Recipe.model_fields, *LossOptions.model_fields, *RUN)
        for text in unknown_variables(os.environ, known):
            print_warning(text)
    variables = {name: by for name in typed if (by := variable_behind(context, name))}
    settings = Settings(typed, typed["config"], typed["preset"], variables, typed["correction"])
    if settings.correction.loss and not loss:
        name = f"--correction {settings.correction_name}"
        text = f"{name}: it sets the policy loss, too, which this command does not compute"
        raise UsageError(text, tip=f"rlpost loss IN {name}")
    return settings


def _parsed(entry: Option, typed: Any) -> Any:
    """Return the value of an option of a function as the function takes it; raises UsageError."""
    if typed in (None, [], ()):
        return entry.default
    flag = FLAGS.get(entry.name, flag_of(entry.name)).split()[0]
    if isinstance(typed, list) and "=" in _metavar([*_kinds(entry.kind)]):
        return name_values(typed, flag)
    try:
        return entry.parsed(typed)
    except ValueError as error:
        raise UsageError(wrong_value(f"{flag} {typed}", typed, str(error))) from None
