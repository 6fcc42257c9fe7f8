"""Single responses on a screen, in a pipe, as JSON and as Markdown."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlpost.analysis.responses.token_colors import COLOURS, legend, strip
from rlpost.display.console import console
from rlpost.display.tables import show_markdown
from rlpost.display.text import number
from rlpost.io.text import printable, printable_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType

    from rlpost.analysis.responses.rows import Response


SCHEMA_VERSION = 1
SIDE_BY_SIDE = 120  # columns from which on responses stand beside one another
_PANEL = 56
_MOST_TOKENS = 400  # of a response among others
_MOST_CHARACTERS = 1600
Json = dict[str, Any]


def show(title: str, responses: Sequence[Response], colour: str | None, how: str) -> None:
    """Responses on stdout.

    Args:
        title: what was asked for.
        responses: in the order to show; one alone is shown whole.
        colour: what colours the tokens, one of COLOURS; None: log-probs on a terminal that has
            colours and a file that has them, else plain text.
        how: `table`, `json` or `markdown`.
    """
    if how == "json":
        found = {"schema_version": SCHEMA_VERSION, "title": title}
        text = json.dumps({**found, "responses": [as_json(one) for one in responses]}, indent=1)
        sys.stdout.write(text + "\n")
    elif how == "markdown":
        headings = ("row", "step", "prompt", "reward", "tokens", *_measured(responses), "response")
        rows = [_markdown_row(one, responses) for one in responses]
        show_markdown(headings, rows, prose="response")
    else:
        _show_table(title, responses, colour, console(sys.stdout))


def as_json(response: Response) -> Json:
    """A response as plain data: a list entry per token, null for what is no number."""
    return {
        "row": response.row,
        "file": response.path,
        "file_row": response.file_row,
        "step": response.step,
        "prompt_id": response.prompt_id,
        "reward": _plain(response.reward),
        "policy_tokens": response.length,
        **{name: _plain(value) for name, value in response.measured.items()},
        "prompt": response.prompt,
        "response": response.text,
        "fields": {name: _plain(value) for name, value in response.fields.items()},
        "tokens": {
            "text": response.pieces,
            "mask": response.mask.astype(int).tolist(),
            **{name: [_plain(x) for x in v.tolist()] for name, v in response.colours.items()},
        },
    }


def _plain(value: Any) -> Any:
    """What JSON can hold: a number that is not finite becomes null, other types text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def _measured(responses: Sequence[Response]) -> list[str]:
    return [name for name in COLOURS if any(name in one.measured for one in responses)]


def _markdown_row(one: Response, responses: Sequence[Response]) -> tuple[str, ...]:
    numbers = [number(one.measured.get(name)) for name in _measured(responses)]
    text = one.text or strip(one, None).plain
    return str(one.row), str(one.step), str(one.prompt_id), _number(one.reward), str(
        one.length
    ), *numbers, text  # fmt: skip


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else number(value)


def _show_table(
    title: str, responses: Sequence[Response], colour: str | None, out: Console
) -> None:
    coloured = out.is_terminal and out.color_system is not None and not out.no_color
    if colour is None and coloured and any("logprob" in one.colours for one in responses):
        colour = "logprob"
    out.print(Text(printable_line(title), style="bold"))
    if colour is not None and coloured:
        out.print(legend(colour))
    whole = len(responses) == 1
    for prompt, several in _by_prompt(responses):
        out.print()
        out.print(_prompt_line(several[0], prompt, whole=whole), soft_wrap=not out.is_terminal)
        bodies = [_body(one, colour, coloured=coloured, whole=whole) for one in several]
        if out.is_terminal:
            out.print(_boxes(several, bodies, out.width))
        else:
            for one, body in zip(several, bodies, strict=True):
                out.print(f"\n{heading(one)} · {facts(one)}")
                out.print(body, soft_wrap=True)
        if whole:
            line = Text("  ".join(field_lines(several[0])), style="dim")
            out.print(line, soft_wrap=not out.is_terminal)


def _by_prompt(responses: Sequence[Response]) -> Iterator[tuple[str, list[Response]]]:
    """Neighbours of one step and prompt, together with the prompt's text."""
    run: list[Response] = []
    for one in responses:
        if run and _of(run[0]) != _of(one):
            yield run[0].prompt, run
            run = []
        run.append(one)
    if run:
        yield run[0].prompt, run


def _of(response: Response) -> tuple[Any, ...]:
    return response.step, response.prompt_id, response.prompt


def _prompt_line(one: Response, prompt: str, *, whole: bool) -> Text:
    step = "" if one.step is None else f"step {printable_line(str(one.step))} · "
    line = Text(f"{step}{shortened(printable_line(str(one.prompt_id)), 60)}", style="bold")
    if prompt and prompt != one.prompt_id:
        line.append("  ")
        line.append(
            printable(prompt) if whole else shortened(printable(prompt), 400), style="not bold"
        )
    return line


def shortened(text: str, most: int) -> str:
    """The first characters of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def heading(one: Response) -> str:
    """The row's number and reward."""
    return f"row {one.row} · reward {_number(one.reward)}"


def facts(one: Response) -> str:
    """The row's length, means over its policy tokens, and how it ended."""
    names = {"logprob": "log-prob", "kl": "KL", "advantage": "adv"}
    found = [f"{one.length:,} token{'' if one.length == 1 else 's'}"]
    found += [f"{names[name]} {_number(one.measured[name])}" for name in _measured([one])]
    end = next((one.fields[n] for n in ("finish_reason", "stop_reason") if n in one.fields), None)
    return printable_line(" · ".join([*found, *([str(end)] if end else [])]))


def _body(one: Response, colour: str | None, *, coloured: bool, whole: bool) -> RenderableType:
    limit = None if whole else _MOST_TOKENS
    text = printable(one.text if whole else _cut(one.text))
    if colour is None or colour not in one.colours:
        return Text(text) if text else strip(one, None, limit=limit)
    tokens = strip(one, colour, numbers=not coloured, limit=limit)
    return tokens if one.words or not text else Group(Text(text), tokens)


def _cut(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]} … {len(text) - _MOST_CHARACTERS:,} characters more"


def _boxes(
    responses: Sequence[Response], bodies: Sequence[RenderableType], width: int
) -> RenderableType:
    """Responses in boxes: beside one another where there is room, else below."""
    across = max(1, min(len(responses), width // _PANEL)) if width >= SIDE_BY_SIDE else 1
    each = (width - across + 1) // across
    panels = [
        Panel(
            body,
            title=Text(heading(one)),
            subtitle=Text(facts(one)),
            title_align="left",
            subtitle_align="left",
            border_style="dim",
            width=each,
        )
        for one, body in zip(responses, bodies, strict=True)
    ]
    if across == 1:
        return Group(*panels)
    grid = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    for start in range(0, len(panels), across):
        grid.add_row(*panels[start : start + across])
    return grid


def field_lines(one: Response) -> list[str]:
    """Where the row is, and its other columns, one line each; what is not seen is a sign."""
    texts = {
        name: number(value) if isinstance(value, float) else printable_line(str(value))
        for name, value in one.fields.items()
    }
    values = [f"{printable_line(name)}={shortened(text, 120)}" for name, text in texts.items()]
    return [f"{printable_line(one.path)}, row {one.file_row}", *values]
