"""Single responses: a group side by side, one row, the highest and the lowest by a measure."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlpost.analysis.responses.index import MEASURES, build_index
from rlpost.analysis.responses.reader import ResponseReader
from rlpost.analysis.responses.rollouts import rollout_view
from rlpost.analysis.responses.token_colors import COLOURS, coloured_tokens, legend
from rlpost.display.console import console
from rlpost.display.controls import printable, printable_line
from rlpost.display.tables import show_markdown
from rlpost.display.text import counted, number
from rlpost.errors import DataError, UsageError, no_such
from rlpost.io.input_paths import InputPaths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console, RenderableType

    from rlpost.analysis.responses.index import Codes, Index
    from rlpost.analysis.responses.reader import Response
    from rlpost.analysis.responses.rollouts import RolloutView
    from rlpost.io.paths import PathText


_MOST_COMPARED = 10_000  # names to search for the closest one


SCHEMA_VERSION = 1


SIDE_BY_SIDE = 120  # columns of a terminal with responses side by side


_MOST_STEPS = 4  # whose groups have statistics in the title


_PANEL = 56


_MOST_TOKENS = 400  # of a response among others


_MOST_CHARACTERS = 1600


Json = dict[str, Any]


def show(
    inputs: Sequence[PathText],
    *,
    columns_map: Mapping[str, str],
    made_of: InputPaths | None = None,
    prompt: str | None = None,
    row: str | int | None = None,
    top: str | None = None,
    worst: bool = False,
    count: int = 5,
    colour: str | None = None,
    format: str = "table",  # noqa: A002 - the option's name
) -> None:
    """Print responses on stdout, selected by exactly one of prompt, row, and top or worst.

    Args:
        inputs: Parquet files, directories or globs.
        columns_map: role to column, as in `--map`.
        made_of: what temporary files among the inputs are made of, which is printed.
        prompt: the id of a group: its responses in every step, highest reward first.
        row: one row of the input: its number from 0, or `FILE:NUMBER` with the number in its file;
            of several files only the latter.
        top: `reward`, `kl`, `length` or `advantage`: the rows with the highest values.
        worst: the rows with the lowest values, of `reward` if `top` is None.
        count: the number of rows for `top` and `worst`.
        colour: the measure for token colours, `logprob`, `kl` or `advantage`; None: plain text.
        format: `table`, `json` or `markdown`.

    Raises:
        UsageError: none or several selections, or an unknown measure or colour.
        DataError: no such prompt or row, or the columns of the measure or colour are missing.
        ReadWriteError: an input cannot be read.
    """
    if top is not None and top not in MEASURES:
        every = f"the measures are {', '.join(MEASURES)}"
        raise UsageError(no_such(f"--top {top}: no such measure", top, MEASURES, every))
    if colour is not None and colour not in COLOURS:
        every = f"the measures are {', '.join(COLOURS)}"
        raise UsageError(no_such(f"--colour {colour}: no such measure", colour, COLOURS, every))
    if (prompt is not None) + (row is not None) + (top is not None or worst) != 1:
        raise UsageError("use exactly one of --prompt, --row, and --top or --worst")
    index = replace(build_index(inputs, columns_map), made_of=made_of or InputPaths(()))
    if colour is not None and not index.columns_for(colour):
        raise index.missing_error(colour)
    if colour is not None and index.sized_by is None:
        raise DataError(f"{index.source.name}: no column with tokens, so --colour has no effect")
    if prompt is not None:
        title, rows = _group(index, prompt)
    elif row is not None:
        title, rows = _single(index, index.row_named(str(row)))
    else:
        title, rows = _extremes(index, top or "reward", count, lowest=worst)
    reader = ResponseReader(index, COLOURS)
    responses = reader.read(rows)
    rollout = None if row is None else rollout_view(index, reader, rows[0])
    responses = [rollout.marked(one) for one in responses] if rollout else responses
    several = len(index.source.files) > 1
    show_responses(title, responses, colour, format, several_files=several, rollout=rollout)


def _group(index: Index, prompt: str) -> tuple[str, list[int]]:
    """Return a title and the rows of a prompt, by step, highest reward first."""
    rows = index.rows_of(prompt)
    if not len(rows):
        raise _no_prompt(index, prompt)
    rewards = index.reward[rows]
    order = np.lexsort((rows, -rewards, index.step_rank[rows]))
    steps = len(np.unique(index.step_rank[rows]))
    if steps == 1:
        return f"{shortened(prompt, 80)}: {group_text(index, rows)}", rows[order].tolist()
    title = f"{shortened(prompt, 80)}: {response_counts(index, rows)} in {steps} steps"
    for rank in np.unique(index.step_rank[rows])[:_MOST_STEPS]:
        own = rows[index.step_rank[rows] == rank]
        label = index.step.label(index.step.codes[own[0]]) if index.step else rank
        title += _joined(f"; step {label}", _reward_statistics(index, own), ": ")
    title += "; ..." if steps > _MOST_STEPS else ""
    return title, rows[order].tolist()


def group_text(index: Index, rows: Codes) -> str:
    """Return what of a group counts, and the mean and deviation of its rewards.

    `4 rollouts (7 rows), 1 failed and left out; reward mean 0.3333, std 0.5774 of 3`.
    """
    return _joined(response_counts(index, rows), _reward_statistics(index, rows))


def response_counts(index: Index, rows: Codes) -> str:
    """Return how many responses rows are, and how many of them failed."""
    text, failed = counted(len(rows), "response"), rows[index.failed[rows]]
    many = len(failed)
    if index.order is not None and index.by_rollout:
        every, lost = (np.unique(index.order.rollout[some]) for some in (rows, failed))
        text, many = f"{counted(len(every), 'rollout')} ({counted(len(rows), 'row')})", len(lost)
    return f"{text}, {many:,} failed and left out" if many else text


def _reward_statistics(index: Index, rows: Codes) -> str:
    """Return the mean and the standard deviation (Bessel) of rewards, NaN left out, as text.

    Of several equal rewards, that the group has no signal.
    """
    rewards = index.reward[index.counted(rows)]
    finite = rewards[~np.isnan(rewards)]
    if not len(finite):
        return ""
    if len(finite) > 1 and np.ptp(finite) == 0:
        return f"no signal: all {len(finite):,} rewards are {number(float(finite[0]))}"
    deviation = f", std {number(float(finite.std(ddof=1)))}" if len(finite) > 1 else ""
    some = f" of {len(finite):,}" if index.failed[rows].any() else ""
    return f"reward mean {number(float(finite.mean()))}{deviation}{some}"


def _joined(title: str, more: str, mark: str = "; ") -> str:
    return f"{title}{mark}{more}" if more else title


def _no_prompt(index: Index, prompt: str) -> DataError:
    if index.prompt is None:
        return DataError(
            f"{index.source.name}: no column for the group; name one with --map group=COLUMN"
        )
    labels = [str(label) for label in index.prompt.labels[:_MOST_COMPARED].to_pylist()]
    first = f"prompts: {', '.join(labels[:5])} ..."
    text = f"{index.source.name}: no prompt {prompt!r}"
    return DataError(no_such(text, prompt, labels, first))


def _single(index: Index, row: int) -> tuple[str, list[int]]:
    file, _ = index.place(row)
    title = f"{index.shown_path(file)}:{index.shown_row(row)}"
    if index.prompt is None or index.prompt.codes[row] < 0:
        return title, [row]
    rows = np.flatnonzero(index.group == index.group[row])
    title += f"; its group has {group_text(index, rows)}"
    if len(index.counted(rows)) == 1:
        title += "; no signal: a reward minus itself is 0"
    return title, [row]


def _extremes(index: Index, measure: str, count: int, *, lowest: bool) -> tuple[str, list[int]]:
    """Return a title and the rows with the highest or lowest measure; ties in input order."""
    if not index.columns_for(measure):
        raise index.missing_error(measure)
    index.measure(measure)
    values = index.number(measure)
    finite = np.flatnonzero(~np.isnan(values))
    order = np.argsort(values[finite] if lowest else -values[finite], kind="stable")
    rows = finite[order[:count]]
    which = "lowest" if lowest else "highest"
    measure = {"kl": "KL"}.get(measure, measure)
    return f"{counted(len(rows), 'response')} with the {which} {measure}", rows.tolist()


def show_responses(
    title: str,
    responses: Sequence[Response],
    colour: str | None,
    how: str,
    *,
    several_files: bool = False,
    rollout: RolloutView | None = None,
) -> None:
    """Responses on stdout.

    Args:
        title: what was asked for.
        responses: in the order to show_responses; one alone is shown whole.
        colour: what colours the tokens, one of COLOURS; None: log-probs on a terminal that has
            colours and a file that has them, else plain text.
        how: `table`, `json` or `markdown`.
        several_files: the input has several files, so rows have the name of theirs.
        rollout: that of the only response, if it has several rows.
    """
    if how == "json":
        found = {"schema_version": SCHEMA_VERSION, "title": title}
        found |= {"rollout": rollout.as_json()} if rollout else {}
        text = json.dumps({**found, "responses": [as_json(one) for one in responses]}, indent=1)
        sys.stdout.write(text + "\n")
    elif how == "markdown":
        headings = (
            "file:row" if several_files else "row",
            "step",
            "prompt",
            "reward",
            "tokens",
            *_measured(responses),
            "response",
        )
        rows = [_markdown_row(one, responses, several_files) for one in responses]
        show_markdown(headings, rows, prose="response")
        if rollout is not None:
            sys.stdout.write(f"\n{rollout.table().markdown()}")
    else:
        fold = len(responses) > 1 and colour is None
        entries = [*_entries(responses, fold=fold, several_files=several_files)]
        out = console(sys.stdout)
        _show_table(f"rlpost inspect · {title}", entries, colour, out)
        if rollout is not None:
            out.print()
            out.print(rollout.table())
            _show_steps(rollout, out)


def _show_steps(rollout: RolloutView, out: Console) -> None:
    """Print what this row shares, and the command that shows the next row."""
    if rollout.shares:
        out.print(Text(rollout.shares))
    if rollout.following is not None:
        file, _ = rollout.index.place(rollout.following)
        path, number = rollout.index.shown_path(file), rollout.index.shown_row(rollout.following)
        name = f"{path}:{number}" if len(rollout.index.source.files) > 1 else str(number)
        line = Text(f"  next: rlpost inspect {printable_line(path)} --row {name}", style="dim")
        out.print(line, soft_wrap=True)


def as_json(response: Response) -> Json:
    """Return a response as plain data: a list entry per token, null for NaN and infinities."""
    return {
        "row": response.row,
        "file": response.path,
        "file_row": response.file_row,
        "step": response.step,
        "prompt_id": response.prompt_id,
        "reward": _plain(response.reward),
        "policy_tokens": response.length,
        **{name: _plain(value) for name, value in response.means.items()},
        "prompt": response.prompt,
        "response": response.text,
        "fields": {name: _plain(value) for name, value in response.fields.items()},
        "tokens": {
            "text": response.token_texts,
            "mask": response.mask.astype(int).tolist(),
            **{
                name: [_plain(x) for x in v.tolist()] for name, v in response.token_measures.items()
            },
        },
    }


def _plain(value: Any) -> Any:
    """Return a value for JSON: NaN and infinities become null, other types text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def _measured(responses: Sequence[Response]) -> list[str]:
    return [name for name in COLOURS if any(name in one.means for one in responses)]


def _markdown_row(
    one: Response,
    responses: Sequence[Response],
    several_files: bool,  # noqa: FBT001
) -> tuple[str, ...]:
    numbers = [number(one.means.get(name)) for name in _measured(responses)]
    text = one.text or coloured_tokens(one, None).plain
    length = "–" if one.length is None else str(one.length)
    keys = _place(one, several_files=several_files), str(one.step), str(one.prompt_id)
    return *keys, _number(one.reward), length, *numbers, text


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else number(value)


@dataclass(frozen=True)
class _EqualResponses:
    """A response on a screen, or several of one prompt with the same tokens and reward."""

    responses: list[Response]
    several_files: bool

    @property
    def first(self) -> Response:
        """The response that is printed for all."""
        return self.responses[0]

    @property
    def heading(self) -> str:
        """The rows and the reward: `rows 0 to 4, 7 (6 equal responses) · reward 1`."""
        places = [_place(one, several_files=self.several_files) for one in self.responses]
        rows = ", ".join(places if self.several_files else _spans(list(map(int, places))))
        noun = "" if self.several_files else "row " if len(places) == 1 else "rows "
        equal = "" if len(places) == 1 else f" ({len(places):,} equal responses)"
        return f"{noun}{rows}{equal} · reward {_number(self.first.reward)}"


def _entries(
    responses: Sequence[Response], *, fold: bool, several_files: bool
) -> Iterator[_EqualResponses]:
    """Yield responses, equal ones of a run of one prompt as one entry if they are to be folded."""
    for _, run in _by_prompt(responses):
        equal: dict[object, list[Response]] = {}
        for one in run:
            key = (one.text, *one.token_texts, one.reward, one.length) if one.text else None
            equal.setdefault(key if fold and key else one.row, []).append(one)
        yield from (_EqualResponses(several, several_files) for several in equal.values())


def _place(one: Response, *, several_files: bool) -> str:
    """Return the number of a row; of several files, `file:row`."""
    return f"{printable_line(one.path)}:{one.file_row}" if several_files else str(one.file_row)


def _spans(rows: Sequence[int]) -> list[str]:
    """Return runs of numbers.

    >>> _spans([0, 1, 2, 4, 7, 8])
    ['0 to 2', '4', '7', '8']
    """
    spans: list[list[int]] = []
    for row in sorted(rows):
        if spans and row == spans[-1][-1] + 1:
            spans[-1].append(row)
        else:
            spans.append([row])
    return [
        text
        for span in spans
        for text in ([f"{span[0]} to {span[-1]}"] if len(span) > 2 else map(str, span))  # noqa: PLR2004
    ]


def _show_table(
    title: str, entries: Sequence[_EqualResponses], colour: str | None, out: Console
) -> None:
    responses = [one.first for one in entries]
    coloured = out.is_terminal and out.color_system is not None and not out.no_color
    if colour is None and coloured and any("logprob" in one.token_measures for one in responses):
        colour = "logprob"
    out.print(Text(printable_line(title), style="bold"))
    if colour is not None and coloured:
        shared = any(one.shared is not None and one.shared.any() for one in responses)
        out.print(legend(colour, shared=shared))
    whole, by_row = len(responses) == 1, {one.first.row: one for one in entries}
    for prompt, several in _by_prompt(responses):
        out.print()
        out.print(_prompt_line(several[0], prompt, whole=whole), soft_wrap=not out.is_terminal)
        heads = [by_row[one.row].heading for one in several]
        numbers = [facts(*by_row[one.row].responses) for one in several]
        bodies = [_body(one, colour, coloured=coloured, whole=whole) for one in several]
        if out.is_terminal:
            out.print(_boxes(heads, numbers, bodies, out.width))
        else:
            for head, own, body in zip(heads, numbers, bodies, strict=True):
                out.print("\n" + " · ".join(filter(None, (head, own))))
                out.print(body, soft_wrap=True)
        if whole:
            line = Text("  ".join(field_lines(several[0])), style="dim")
            out.print(line, soft_wrap=not out.is_terminal)


def _by_prompt(responses: Sequence[Response]) -> Iterator[tuple[str, list[Response]]]:
    """Yield runs of responses of one step and prompt, with the prompt's text."""
    run: list[Response] = []
    for one in responses:
        if run and _prompt_key(run[0]) != _prompt_key(one):
            yield run[0].prompt, run
            run = []
        run.append(one)
    if run:
        yield run[0].prompt, run


def _prompt_key(response: Response) -> tuple[Any, ...]:
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
    """Return the first characters of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def heading(one: Response) -> str:
    """Return the row's number and reward."""
    return f"row {one.row} · reward {_number(one.reward)}"


def facts(one: Response, *equal: Response) -> str:
    """Return the row's length, means over its policy tokens, and finish reason.

    Of a response and equal ones, the lowest and the highest mean.
    """
    names = {"logprob": "log-prob", "kl": "KL", "advantage": "A"}
    parts = [] if one.length is None else [counted(one.length, "token")]
    for name in _measured([one]):
        means = sorted({other.means.get(name, math.nan) for other in (one, *equal)})
        ends = " to ".join(_number(mean) for mean in dict.fromkeys((means[0], means[-1])))
        parts.append(f"{names[name]} {ends}")
    end = next((one.fields[n] for n in ("finish_reason", "stop_reason") if n in one.fields), None)
    return printable_line(" · ".join([*parts, *([str(end)] if end else [])]))


def _body(one: Response, colour: str | None, *, coloured: bool, whole: bool) -> RenderableType:
    limit = None if whole else _MOST_TOKENS
    text = printable(one.text if whole else _cut(one.text))
    if colour is None or colour not in one.token_measures:
        return Text(text) if text else coloured_tokens(one, None, limit=limit)
    tokens = coloured_tokens(one, colour, numbers=not coloured, limit=limit)
    return tokens if one.has_texts or not text else Group(Text(text), tokens)


def _cut(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]} … {len(text) - _MOST_CHARACTERS:,} more characters"


def _boxes(
    heads: Sequence[str],
    numbers: Sequence[str],
    bodies: Sequence[RenderableType],
    width: int,
) -> RenderableType:
    """Return responses in boxes, side by side on a wide terminal."""
    across = max(1, min(len(bodies), width // _PANEL)) if width >= SIDE_BY_SIDE else 1
    each = (width - across + 1) // across
    panels = [
        Panel(
            body,
            title=Text(head),
            subtitle=Text(own),
            title_align="left",
            subtitle_align="left",
            border_style="dim",
            width=each,
        )
        for head, own, body in zip(heads, numbers, bodies, strict=True)
    ]
    if across == 1:
        return Group(*panels)
    grid = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    for start in range(0, len(panels), across):
        grid.add_row(*panels[start : start + across])
    return grid


def field_lines(one: Response) -> list[str]:
    """Return the row's file and its other columns, one line each, with visible control signs."""
    texts = {
        name: number(value)
        if isinstance(value, float)
        else printable_line("null" if value is None else str(value))
        for name, value in one.fields.items()
    }
    values = [f"{printable_line(name)}={shortened(text, 120)}" for name, text in texts.items()]
    return [f"{printable_line(one.path)}:{one.file_row}", *values]
