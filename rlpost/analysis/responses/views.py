"""Single responses: a group side by side, one row, the highest and the lowest by a measure."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Group
from rich.text import Text

from rlpost.analysis.responses.index import build_index, moments_by
from rlpost.analysis.responses.reader import ResponseReader
from rlpost.analysis.responses.token_colors import COLOURS, coloured_tokens, legend
from rlpost.display.console import console
from rlpost.display.controls import printable, printable_line
from rlpost.display.tables import TextTable, show_markdown
from rlpost.display.text import counted, number
from rlpost.errors import DataError, UsageError, no_such
from rlpost.io.arrow import string_array
from rlpost.io.input_paths import InputPaths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from rlpost.analysis.responses.index import Codes, Index
    from rlpost.analysis.responses.reader import Response
    from rlpost.io.paths import PathText


_MOST_COMPARED = 10_000  # names to search for the closest one
SCHEMA_VERSION = 1
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
    count: int | None = None,
    colour: str | None = None,
    format: str = "table",  # noqa: A002 - the option's name
    **counting: Any,
) -> None:
    """Print responses on stdout, selected by exactly one of prompt, row, and top or worst.

    Args:
        inputs: Parquet files, directories or globs.
        columns_map: role to column, as in `--map`.
        made_of: what temporary files among the inputs are made of, which is printed.
        prompt: the id of a group: its responses in every step, highest reward first.
        row: one row of the input: its number from 0, or `FILE:NUMBER` with the number in its file;
            of several files only the latter.
        top: one of MEASURES: the rows with the highest values.
        worst: the rows with the lowest values, of `reward` if `top` is None.
        count: the number of rows; None: all of `prompt`, 5 for `top` and `worst`.
        colour: the measure for token colours, one of COLOURS; None: plain text.
        format: `table`, `json` or `markdown`.
        counting: as of `build_index`.

    Raises:
        UsageError: none or several selections.
        DataError: no such prompt or row, or the columns of the measure or colour are missing.
        ReadWriteError: an input cannot be read.
    """
    if (prompt is not None) + (row is not None) + (top is not None or worst) != 1:
        raise UsageError("use exactly one of --prompt, --row, and --top or --worst")
    index = replace(build_index(inputs, columns_map, **counting), made_of=made_of or InputPaths(()))
    if colour is not None and not index.columns_of(colour):
        raise index.missing(colour)
    if colour is not None and index.sized_by is None:
        raise DataError(f"{index.source.name}: no column with tokens, so --colour has no effect")
    if prompt is not None:
        title, rows = _group(index, prompt)
        rows = rows[:count]
    elif row is not None:
        title, rows = _single(index, index.row_named(str(row)))
    else:
        title, rows = _extremes(index, top or "reward", count or 5, lowest=worst)
    reader = ResponseReader(index, COLOURS)
    show_responses(title, reader.read(rows), colour, format)


def _group(index: Index, prompt: str) -> tuple[str, list[int]]:
    """Return a title and the rows of a prompt, by step, highest reward first."""
    if "group" not in index.keys:
        text = f"{index.source.name}: no column for the group; name one with --map group=COLUMN"
        raise DataError(text)
    keys = index.keys["group"]
    code = pc.index(keys.labels.cast(pa.string()), string_array([prompt])[0]).as_py()
    rows = np.flatnonzero(keys.codes == code)
    if not len(rows):
        labels = [str(label) for label in keys.labels[:_MOST_COMPARED].to_pylist()]
        first = f"prompts: {', '.join(labels[:5])} ..."
        raise DataError(
            no_such(f"{index.source.name}: no prompt {prompt!r}", prompt, labels, first)
        )
    order = np.lexsort((rows, -index.reward[rows], index.step_rank[rows]))
    steps, title = np.unique(index.step_rank[rows]), shortened(prompt, 80)
    if len(steps) == 1:
        return f"{title}: {group_text(index, rows)}", rows[order].tolist()
    return f"{title}: {index.counts_text(rows)} in {len(steps)} steps", rows[order].tolist()


def group_text(index: Index, rows: Codes) -> str:
    """Return what of a group counts, and the mean and deviation of its rewards.

    `4 rollouts (7 rows), 1 failed and left out; reward mean 0.3333, std 0.5774 of 3`.
    """
    differ = index.table.rows.notes.get("rows_differ")
    means = index.table.resolved.recipe.rollout_reward == "equal" and differ is not None
    texts = [index.counts_text(rows), _reward_statistics(index, rows)]
    texts += ["a rollout's is the mean of its rows"] if means and texts[1] else []
    return "; ".join(filter(None, texts))


def _reward_statistics(index: Index, rows: Codes) -> str:
    """Return the mean and the standard deviation (Bessel) of rewards, NaN left out, as text.

    Of several equal rewards, that the group has no signal.
    """
    units = index.counted(rows)
    (count,), (mean,), (std,) = moments_by(index.rewards[units], np.zeros_like(units), 1)
    if not count:
        return ""
    if count > 1 and std == 0:
        return f"no signal: all {int(count):,} rewards are {number(mean)}"
    deviation = f", std {number(std)}" if count > 1 else ""
    some = f" of {int(count):,}" if count < len(np.unique(index.table.unit[rows])) else ""
    return f"reward mean {number(mean)}{deviation}{some}"


def _single(index: Index, row: int) -> tuple[str, list[int]]:
    title = ":".join(map(str, index.shown_place(row)))
    if index.label("group", row) is None:
        return title, [row]
    rows = np.flatnonzero(index.group == index.group[row])
    title += f"; its group has {group_text(index, rows)}"
    if len(index.counted(rows)) == 1:
        title += "; no signal: a reward minus itself is 0"
    return title, [row]


def _extremes(index: Index, measure: str, count: int, *, lowest: bool) -> tuple[str, list[int]]:
    """Return a title and the rows that count with the highest or lowest measure.

    Ties are in input order.
    """
    values = index.number(measure)
    rows = np.flatnonzero(index.counts & ~np.isnan(values))
    rows = rows[np.argsort(values[rows] if lowest else -values[rows], kind="stable")[:count]]
    which, name = "lowest" if lowest else "highest", {"kl": "KL"}.get(measure, measure)
    title = f"{counted(len(rows), 'response')} with the {which} {name}"
    left_out = int(np.count_nonzero(~index.counts))
    title += f"; {counted(left_out, 'row')} left out" if left_out else ""
    return title, rows.tolist()


def show_responses(
    title: str,
    responses: Sequence[Response],
    colour: str | None,
    how: str,
) -> None:
    """Responses on stdout.

    Args:
        title: what was asked for.
        responses: in the order to show them; one alone is shown whole.
        colour: what colours the tokens, one of COLOURS; None: log-probs on a terminal that has
            colours and a file that has them, else plain text.
        how: `table`, `json` or `markdown`.
    """
    rollout = responses[0].rollout if len(responses) == 1 else None
    if how == "json":
        answer = {"schema_version": SCHEMA_VERSION, "title": title}
        answer |= {"rollout": rollout.as_json()} if rollout else {}
        answer |= {"responses": [as_json(response) for response in responses]}
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
    elif how == "markdown":
        measures = [name for name in COLOURS if any(name in x.means for x in responses)]
        headings = ("row", "step", "prompt", "reward", "tokens", *measures, "response")
        rows = [
            (
                response.place,
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
        coloured = out.is_terminal and out.color_system is not None and not out.no_color
        if colour is None and coloured and any("logprob" in x.token_measures for x in responses):
            colour = "logprob"
        out.print(Text(printable_line(f"rlpost inspect · {title}"), style="bold"))
        for part in drawn(responses, colour, numbers=not coloured, most=_MOST_TOKENS):
            out.print(part, soft_wrap=not out.is_terminal and not isinstance(part, TextTable))
        if rollout is not None and rollout.following is not None:
            path, row = rollout.index.shown_place(rollout.following)
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
        "left_out": response.left_out or None,
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


def drawn(
    responses: Sequence[Response],
    colour: str | None,
    *,
    numbers: bool = False,
    most: int | None = None,
    mark: str = "",
    gap: str = "  ",
) -> Iterator[RenderableType]:
    """Yield responses by prompt, equal ones of a prompt once unless tokens are coloured.

    Args:
        responses: in the order to show them; one alone is shown whole.
        colour: what colours the tokens, one of COLOURS; None: nothing.
        numbers: write each token's number, for output without colours.
        most: tokens of a response among others; None: all.
        mark: a text to highlight.
        gap: what separates the other columns of a row.
    """
    fold, whole = len(responses) > 1 and colour is None, len(responses) == 1
    if not numbers and any(colour in response.token_measures for response in responses):
        yield legend(str(colour))
    for _, run in groupby(responses, lambda x: (x.step, x.prompt_id, x.prompt)):
        equal: dict[object, list[Response]] = {}
        for response in run:
            texts = response.text, *response.token_texts, response.reward, response.length
            key = (*texts, response.left_out) if fold and response.text else response.row
            equal.setdefault(key, []).append(response)
        first = next(iter(equal.values()))[0]
        yield Text()
        yield _marked(_prompt_line(first, whole=whole), mark)
        for several in equal.values():
            yield Text()
            yield Text(heading(*several), style="bold")
            limit = None if whole else most
            yield body(several[0], colour, numbers=numbers, limit=limit, mark=mark)
        if whole and first.rollout is not None:
            yield from (Text(), first.rollout.table())
        if whole:
            fields = [f"{printable_line(name)}={shortened(printable_line(text), 120)}"
                      for name, text in field_texts(first).items()]  # fmt: skip
            line = gap.join([f"{printable_line(first.path)}:{first.file_row}", *fields])
            yield from (Text(), Text(line, style="dim"))


def heading(*equal: Response) -> str:
    """Return rows of equal responses, reward, length, means over policy tokens, finish reason.

    `rows 0, 1, 2 (3 equal responses) · reward 1 · 20 tokens · KL 0.1 to 0.2`: of several the lowest
    and the highest mean.
    """
    response, rows = equal[0], ", ".join(x.place for x in equal)
    count = "" if len(equal) == 1 else f" ({len(equal):,} equal responses)"
    noun = f"row{'s' * (len(equal) > 1)} " if response.place.isdecimal() else ""
    parts = [f"{noun}{rows}{count}", f"reward {_number(response.reward)}"]
    parts += [f"{response.left_out}: left out"] if response.left_out else []
    parts += [] if response.length is None else [counted(response.length, "token")]
    for name, short in {"logprob": "log-prob", "kl": "KL", "advantage": "A"}.items():
        if name in response.means:
            means = sorted({x.means.get(name, math.nan) for x in equal})
            ends = " to ".join(_number(mean) for mean in dict.fromkeys((means[0], means[-1])))
            parts.append(f"{short} {ends}")
    fields = response.fields
    end = next((fields[name] for name in ("finish_reason", "stop_reason") if name in fields), None)
    return printable_line(" · ".join([*parts, *([str(end)] if end else [])]))


def _prompt_line(response: Response, *, whole: bool) -> Text:
    step = "" if response.step is None else f"step {printable_line(str(response.step))} · "
    line = Text(f"{step}{shortened(printable_line(str(response.prompt_id)), 60)}", style="bold")
    if response.prompt and response.prompt != response.prompt_id:
        text = printable(response.prompt)
        line.append("  ").append(text if whole else shortened(text, 400), style="not bold")
    return line


def _marked(line: Text, mark: str) -> Text:
    if mark:
        line.highlight_words([mark], "reverse", case_sensitive=False)
    return line


def shortened(text: str, most: int) -> str:
    """Return the first characters of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


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
    tokens = _marked(coloured_tokens(response, known, numbers=numbers, limit=limit), mark)
    words = _marked(Text(text), mark)
    if known is None:
        return words if text else tokens
    return tokens if response.has_texts or not text else Group(words, tokens)


def field_texts(response: Response) -> dict[str, str]:
    """Return the row's other columns as texts, by name."""
    return {name: number(x) if isinstance(x, float) else "null" if x is None else str(x)
            for name, x in response.fields.items()}  # fmt: skip
