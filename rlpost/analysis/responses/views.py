"""Single responses: a group side by side, one row, the highest and the lowest by a measure."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
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
    from collections.abc import Mapping, Sequence

    from rich.console import Console, RenderableType

    from rlpost.analysis.responses.index import Codes, Index
    from rlpost.analysis.responses.reader import Response
    from rlpost.analysis.responses.rollouts import RolloutView
    from rlpost.io.paths import PathText


_MOST_COMPARED = 10_000  # names to search for the closest one
SCHEMA_VERSION = 1
_MOST_STEPS = 4  # whose groups have statistics in the title
_MOST_TOKENS = 400  # of a response among others
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
        measures = f"the measures are {', '.join(MEASURES)}"
        raise UsageError(no_such(f"--top {top}: no such measure", top, MEASURES, measures))
    if colour is not None and colour not in COLOURS:
        measures = f"the measures are {', '.join(COLOURS)}"
        raise UsageError(no_such(f"--colour {colour}: no such measure", colour, COLOURS, measures))
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
    responses = [rollout.marked(response) for response in responses] if rollout else responses
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
        members = rows[index.step_rank[rows] == rank]
        label = index.step.label(index.step.codes[members[0]]) if index.step else rank
        title += _joined(f"; step {label}", _reward_statistics(index, members), ": ")
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
    if index.order is not None and index.by_rollout:
        whole, failed = (np.unique(index.order.rollout[part]) for part in (rows, failed))
        text = f"{counted(len(whole), 'rollout')} ({counted(len(rows), 'row')})"
    return f"{text}, {len(failed):,} failed and left out" if len(failed) else text


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
        responses: in the order to show them; one alone is shown whole.
        colour: what colours the tokens, one of COLOURS; None: log-probs on a terminal that has
            colours and a file that has them, else plain text.
        how: `table`, `json` or `markdown`.
        several_files: the input has several files, so rows have the name of theirs.
        rollout: that of the only response, if it has several rows.
    """
    if how == "json":
        answer = {"schema_version": SCHEMA_VERSION, "title": title}
        answer |= {"rollout": rollout.as_json()} if rollout else {}
        answer |= {"responses": [as_json(response) for response in responses]}
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
    elif how == "markdown":
        measures = [name for name in COLOURS if any(name in one.means for one in responses)]
        place = "file:row" if several_files else "row"
        headings = (place, "step", "prompt", "reward", "tokens", *measures, "response")
        rows = [
            (
                _place(response, several_files=several_files),
                str(response.step),
                str(response.prompt_id),
                _number(response.reward),
                "–" if response.length is None else str(response.length),
                *(number(response.means.get(name)) for name in measures),
                response.text or coloured_tokens(response, None).plain,
            )
            for response in responses
        ]
        show_markdown(headings, rows, prose="response")
        if rollout is not None:
            sys.stdout.write(f"\n{rollout.table().markdown()}")
    else:
        out = console(sys.stdout)
        _print(f"rlpost inspect · {title}", responses, colour, out, several_files=several_files)
        if rollout is not None:
            out.print()
            out.print(rollout.table())
            _print_next(rollout, out)


def _print_next(rollout: RolloutView, out: Console) -> None:
    """Print what this row shares, and the command that shows the next row."""
    if rollout.shares:
        out.print(Text(rollout.shares))
    if rollout.following is not None:
        file, _ = rollout.index.place(rollout.following)
        path, row = rollout.index.shown_path(file), rollout.index.shown_row(rollout.following)
        name = f"{path}:{row}" if len(rollout.index.source.files) > 1 else str(row)
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
                name: [_plain(value) for value in values.tolist()]
                for name, values in response.token_measures.items()
            },
        },
    }


def _plain(value: Any) -> Any:
    """Return a value for JSON: NaN and infinities become null, other types text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else number(value)


def _place(response: Response, *, several_files: bool) -> str:
    """Return the number of a row; of several files, `file:row`."""
    row = str(response.file_row)
    return f"{printable_line(response.path)}:{row}" if several_files else row


def _print(
    title: str,
    responses: Sequence[Response],
    colour: str | None,
    out: Console,
    *,
    several_files: bool,
) -> None:
    """Print responses by prompt, equal ones of a prompt once unless tokens are coloured."""
    fold, whole = len(responses) > 1 and colour is None, len(responses) == 1
    coloured = out.is_terminal and out.color_system is not None and not out.no_color
    if colour is None and coloured and any("logprob" in one.token_measures for one in responses):
        colour = "logprob"
    out.print(Text(printable_line(title), style="bold"))
    if colour is not None and coloured:
        shared = any(one.shared is not None and one.shared.any() for one in responses)
        out.print(legend(colour, shared=shared))
    for _, run in groupby(responses, lambda one: (one.step, one.prompt_id, one.prompt)):
        equal: dict[object, list[Response]] = {}
        for response in run:
            texts = response.text, *response.token_texts, response.reward, response.length
            key = texts if fold and response.text else response.row
            equal.setdefault(key, []).append(response)
        first = next(iter(equal.values()))[0]
        out.print()
        out.print(_prompt_line(first, whole=whole), soft_wrap=not out.is_terminal)
        for several in equal.values():
            head = [_heading(several, several_files=several_files), facts(*several)]
            out.print()
            out.print(Text(" · ".join(filter(None, head)), style="bold"))
            limit = None if whole else _MOST_TOKENS
            drawn = body(several[0], colour, numbers=not coloured, limit=limit)
            out.print(drawn, soft_wrap=not out.is_terminal)
        if whole:
            line = Text("  ".join(field_lines(first)), style="dim")
            out.print(line, soft_wrap=not out.is_terminal)


def _heading(equal: Sequence[Response], *, several_files: bool) -> str:
    """Return the rows and the reward: `rows 0, 1, 2 (3 equal responses) · reward 1`."""
    rows = ", ".join(_place(response, several_files=several_files) for response in equal)
    noun = "" if several_files else "row " if len(equal) == 1 else "rows "
    count = "" if len(equal) == 1 else f" ({len(equal):,} equal responses)"
    return f"{noun}{rows}{count} · reward {_number(equal[0].reward)}"


def _prompt_line(response: Response, *, whole: bool) -> Text:
    step = "" if response.step is None else f"step {printable_line(str(response.step))} · "
    line = Text(f"{step}{shortened(printable_line(str(response.prompt_id)), 60)}", style="bold")
    if response.prompt and response.prompt != response.prompt_id:
        text = printable(response.prompt)
        line.append("  ").append(text if whole else shortened(text, 400), style="not bold")
    return line


def shortened(text: str, most: int) -> str:
    """Return the first characters of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def heading(response: Response) -> str:
    """Return the row's number and reward."""
    return f"row {response.row} · reward {_number(response.reward)}"


def facts(response: Response, *equal: Response) -> str:
    """Return the row's length, means over its policy tokens, and finish reason.

    Of a response and equal ones, the lowest and the highest mean.
    """
    parts = [] if response.length is None else [counted(response.length, "token")]
    for name, short in {"logprob": "log-prob", "kl": "KL", "advantage": "A"}.items():
        if name in response.means:
            means = sorted({row.means.get(name, math.nan) for row in (response, *equal)})
            ends = " to ".join(_number(mean) for mean in dict.fromkeys((means[0], means[-1])))
            parts.append(f"{short} {ends}")
    fields = response.fields
    end = next((fields[name] for name in ("finish_reason", "stop_reason") if name in fields), None)
    return printable_line(" · ".join([*parts, *([str(end)] if end else [])]))


def body(
    response: Response,
    colour: str | None,
    *,
    numbers: bool = False,
    limit: int | None = None,
    mark: str = "",
) -> RenderableType:
    """Return the text of a response, its coloured tokens, or both if the tokens have no texts.

    Args:
        response: with the columns of the colour.
        colour: what colours the tokens; None, or a measure that it lacks: the text.
        numbers: write each token's number, for output without colours.
        limit: the number of tokens to show; None: all.
        mark: a text to highlight.
    """
    known = colour if colour in response.token_measures else None
    text = printable(response.text)
    most = 4 * limit if limit else len(text)
    if len(text) > most:
        text = f"{text[:most]} … {len(text) - most:,} more characters"
    tokens = coloured_tokens(response, known, numbers=numbers, limit=limit)
    for line in (tokens, words := Text(text)):
        if mark:
            line.highlight_words([mark], "reverse", case_sensitive=False)
    if known is None:
        return words if text else tokens
    return tokens if response.has_texts or not text else Group(words, tokens)


def field_lines(response: Response) -> list[str]:
    """Return the row's file and its other columns, one line each, with visible control signs."""
    texts = {
        name: number(value)
        if isinstance(value, float)
        else printable_line("null" if value is None else str(value))
        for name, value in response.fields.items()
    }
    values = [f"{printable_line(name)}={shortened(text, 120)}" for name, text in texts.items()]
    return [f"{printable_line(response.path)}:{response.file_row}", *values]
