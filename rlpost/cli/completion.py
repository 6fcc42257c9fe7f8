"""What the shell offers on TAB: names of estimators, presets and fields, columns of the file.

Typer makes the scripts (`rlpost --show-completion`) and asks the program at each TAB, so nothing
here may take long: torch is never imported, and pyarrow only for a footer of megabytes.
"""

from __future__ import annotations

import os
import re
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from typer._click.shell_completion import CompletionItem
from typer.core import TyperGroup

from rlpost.io.parquet.column_names import column_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, MutableMapping

    from typer._click.core import Command, Context, Parameter

    Offers = Iterable[tuple[str, str]]
    Completer = Callable[[Context, str], Offers]


ASKED = "_RLPOST_COMPLETE"
"""The environment variable by which a shell asks."""
_JOINED = "_RLPOST_JOINED"
_HOME = Path(__file__).parents[1]
# name and formula, as `ESTIMATOR = Estimator("gae", ..., formula="...")` has them
_DECLARED = re.compile(
    r'^\w+ = (?:Estimator|Loss)\(\s*"(\w+)".*?formula="(.*?)"', flags=re.DOTALL | re.MULTILINE
)
# name and title, as `FORMAT = Format(name="verl", title="...", ...)` has them
_FORMAT = re.compile(r'^FORMAT = Format\(\s*name="(.*?)",\s*title="(.*?)"', flags=re.MULTILINE)


def declared(package: str) -> dict[str, str]:
    """Names in `estimators` or `losses` with formulas, or in `formats` with titles.

    They are read from the source: torch and pyarrow stay away.
    """
    pattern = _FORMAT if package == "formats" else _DECLARED
    texts = (path.read_text(encoding="utf-8") for path in sorted((_HOME / package).glob("*.py")))
    return dict(found for text in texts for found in pattern.findall(text))


def _estimators(context: Context, incomplete: str) -> Offers:
    from rlpost.recipe import presets  # noqa: PLC0415

    del incomplete
    yield from declared("estimators").items()
    yield from ((point.name, point.value) for point in entry_points(group="rlpost.estimators"))
    preset = context.params.get("preset")
    for name in [preset] if isinstance(preset, str) else list(preset or []):
        if name in presets.PRESETS:
            yield from ((one, f"as {name} has it") for one in presets.variants(name))


def _losses(context: Context, incomplete: str) -> Offers:
    from rlpost.recipe import presets  # noqa: PLC0415

    del incomplete
    yield from declared("losses").items()
    if context.params.get("preset") in presets.PRESETS:
        name = str(context.params["preset"])
        yield from ((one, f"as {name} has it") for one in presets.loss_variants(name))


def _formats(context: Context, incomplete: str) -> Offers:
    del context, incomplete
    return declared("formats").items()


def _presets(context: Context, incomplete: str) -> Offers:
    from rlpost.recipe import presets  # noqa: PLC0415

    del context, incomplete
    return [(name, presets.about(name)) for name in (*presets.PRESETS, presets.DEFAULT)]


def _pairs(incomplete: str, names: dict[str, str], values: Callable[[str], Offers]) -> Offers:
    """NAME= for several names; NAME=VALUE where one is left, for a shell adds a space to it."""
    name, equals, _ = incomplete.partition("=")
    near = [one for one in names if one.startswith(name)]
    chosen = name if equals else near[0] if len(near) == 1 else ""
    if chosen not in names:
        return [(f"{one}=", names[one]) for one in near]
    return [(f"{chosen}={value}", text) for value, text in values(chosen)] or [
        (f"{chosen}=", names[chosen])
    ]


def _roles(context: Context, incomplete: str) -> Offers:
    from rlpost.recipe.roles import ROLES  # noqa: PLC0415

    roles = {name: f"{role.kind}: {', '.join(role.aliases[:3])}" for name, role in ROLES.items()}
    return _pairs(incomplete, roles, lambda _: _column(context, ""))


def _teachers(context: Context, incomplete: str) -> Offers:
    del incomplete
    return [(f"{name}=1", "weight 1") for name in _columns(context)]


def _column(context: Context, incomplete: str) -> Offers:
    del incomplete
    return [(name, "") for name in _columns(context)]


def _columns(context: Context) -> list[str]:
    """The columns of the file at hand: the first argument that is one."""
    words: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.param_type_name == "argument" and value:
            words += [value] if isinstance(value, str) else [str(one) for one in value]
    return column_names([*words, *context.args])


def _numerics(context: Context, incomplete: str) -> Offers:
    from rlpost.recipe.numerics import Numerics  # noqa: PLC0415

    del context
    fields = Numerics.model_fields
    names = {name: " ".join((info.description or "").split()) for name, info in fields.items()}

    def values(name: str) -> Offers:
        info = fields[name]
        if get_origin(info.annotation) is Literal:
            return [(str(value), names[name]) for value in get_args(info.annotation)]
        return [(f"{info.default:g}", "the default")]

    return _pairs(incomplete, names, values)


def _sweeps(context: Context, incomplete: str) -> Offers:
    from rlpost.recipe.loss import LossOptions  # noqa: PLC0415

    fields = LossOptions.model_fields
    names = {name: " ".join((info.description or "").split()) for name, info in fields.items()}
    return _pairs(incomplete, names, lambda name: _losses(context, "") if name == "loss" else [])


def _emitted(context: Context, incomplete: str) -> Offers:
    from rlpost.recipe.recipe import (  # noqa: PLC0415
        EXTRA,
        WRITTEN,
    )

    del context
    return _listed(incomplete, [*WRITTEN, *EXTRA])


def _column_list(context: Context, incomplete: str) -> Offers:
    return _listed(incomplete, _columns(context))


def _listed(incomplete: str, names: Iterable[str]) -> Offers:
    """The next of several names with commas between."""
    before, comma, _ = incomplete.rpartition(",")
    taken = before.split(",")
    return [(f"{before}{comma}{name}", "") for name in names if name not in taken]


def _topics(context: Context, incomplete: str) -> Offers:
    from rlpost.manual import TOPICS  # noqa: PLC0415

    del context, incomplete
    return TOPICS.items()


def _words(context: Context, incomplete: str, *, words: tuple[str, ...]) -> Offers:
    del context, incomplete
    return [(word, "") for word in words]


BY_FLAG: dict[str, Completer] = {
    "--estimator": _estimators,
    "--from": _formats,
    "--loss": _losses,
    "--preset": _presets,
    "--map": _roles,
    "--teacher": _teachers,
    "--rollout-id": _column,
    "--column": _column,
    "--reward-components": _column_list,
    "--numerics": _numerics,
    "--sweep": _sweeps,
    "--emit": _emitted,
    "--layout": partial(_words, words=("response", "padded", "shifted", "compact", "left-padded")),
    "--device": partial(_words, words=("auto", "cpu", "cuda")),
}
BY_ARGUMENT: dict[str, Completer] = {
    "PRESET": _presets,
    "PRESET|default": _presets,
    "ESTIMATOR": _estimators,
    "TOPIC": _topics,
}


def attach(command: Command) -> Command:
    """Give the options and arguments of a command, and of those below it, what they offer."""
    for parameter in _parameters(command):
        found = _completer(parameter)
        if found is not None:
            parameter._custom_shell_complete = partial(_offered, found)  # noqa: SLF001
    return command


def _parameters(command: Command) -> Iterator[Parameter]:
    yield from command.params
    if isinstance(command, TyperGroup):
        for one in command.commands.values():
            yield from _parameters(one)


def _completer(parameter: Parameter) -> Completer | None:
    """By the option's name, else the words that its metavar lists; files are the shell's own."""
    metavar = str(parameter.metavar or "")
    if parameter.param_type_name == "argument":
        return BY_ARGUMENT.get(metavar)
    for flag in parameter.opts:
        if flag in BY_FLAG:
            return BY_FLAG[flag]
    words = tuple(word for word in metavar.split("|") if re.fullmatch(r"[a-z0-9_-]+", word))
    if words and "|" in metavar:
        return partial(_words, words=words)
    return None


def _offered(
    completer: Completer, context: Context, parameter: Parameter, incomplete: str
) -> list[CompletionItem]:
    """What begins as the word does, each once; a bash that splits words gets the last part."""
    del parameter
    offers = dict(completer(context, incomplete))
    begins = [(value, text) for value, text in offers.items() if value.startswith(incomplete)]
    own = len(os.environ.get(_JOINED, ""))
    return [CompletionItem(value[own:], help=text or None) for value, text in begins]


def join_words(environment: MutableMapping[str, str]) -> None:
    """Undo what bash does to `--map role=column`: it makes three words of the last one.

    For readline `=` and `:` are words of their own, and only what follows them is replaced.
    """
    if not environment.get(ASKED, "").endswith("_bash"):
        return
    if "\n" not in environment.get("COMP_WORDS", ""):  # not from the script that typer makes
        return
    words, cursor = environment["COMP_WORDS"].split("\n"), int(environment["COMP_CWORD"])
    joined: list[str] = []
    glued = False
    for word in words[: cursor + 1]:
        breaks = re.fullmatch("[=:]+", word) is not None
        if joined and (breaks or glued):
            environment[_JOINED] = joined[-1] + (word if breaks else "")
            joined[-1] += word
        else:
            environment[_JOINED] = ""
            joined.append(word)
        glued = breaks
    if joined[-1].startswith("--"):  # `--flag=value`: the flag is no part of what is completed
        flag, equals, _ = environment[_JOINED].partition("=")
        environment[_JOINED] = environment[_JOINED].removeprefix(flag + equals)
    environment["COMP_WORDS"] = "\n".join(joined)
    environment["COMP_CWORD"] = str(len(joined) - 1)
