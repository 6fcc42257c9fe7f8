"""What people see of `rlpost loss`: tables with a line on what their numbers mean."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from rlpost.render import MOST_ROWS, console, number, percent
from rlpost.render_lists import show_json, show_markdown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

Json = dict[str, Any]
_INDENT = 2


class Block(NamedTuple):
    """A table, and what its numbers mean."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    meaning: str = ""


def show(summary: Json, how: str) -> None:
    """The summary of a run on stdout, as a `table`, as `json` or as `markdown`."""
    if how == "json":
        show_json(summary)
        return
    several = len(summary["settings"]) > 1
    found = list(_sweep(summary) if several else _single(summary))
    if how == "markdown":
        for block in found:
            show_markdown(block.headings, block.rows)
            sys.stdout.write("\n")
        return
    out = console(sys.stdout)
    out.print(Text(_title(summary), style="bold"))
    for line in _about(summary):
        out.print(Text(line))
    for block in found:
        _print(block, out)
    _close(summary, out)


def _title(summary: Json) -> str:
    settings = summary["settings"]
    if len(settings) > 1:
        swept = ", ".join(settings[0]["swept"])
        title = f"rlpost loss · {len(settings)} settings of {swept}"
    else:
        title = f"rlpost loss · {settings[0]['options']['loss']} ({settings[0]['source']})"
    return title + (f", as {summary['preset']} has it" if summary.get("preset") else "")


def _about(summary: Json) -> Iterator[str]:
    tokens, roles = summary["tokens"], summary["roles"]
    yield ", ".join(summary["inputs"][:2]) + (" and more" if len(summary["inputs"]) > 2 else "")  # noqa: PLR2004
    if summary["outputs"]:
        yield "  → " + ", ".join(summary["outputs"][:2])
    share = tokens["policy"] / tokens["all"] if tokens["all"] else 0.0
    yield (
        f"{summary['responses']:,} responses, {tokens['all']:,} tokens; {percent(share)} of them "
        "count"
    )
    if summary["estimator"]:
        asked = summary["asked_estimator"] or summary["estimator"]
        way = f"as {summary['preset']} makes them" if summary.get("preset") else f"by {asked}"
        yield f"advantages: made here {way}, since the input has none"
    else:
        yield f"advantages: the input's column {summary['advantages_from']}"
    new, old = (roles[role]["column"] for role in ("log_probs", "old_log_probs"))
    yield f"ratio: exp({new} - {old}), how much likelier training made a token"
    if len(summary["settings"]) == 1:
        one = summary["settings"][0]
        yield f"loss of a token: {one['formula']}"


def _print(block: Block, out: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for place, heading in enumerate(block.headings):
        side = "right" if place else "left"
        table.add_column(heading, justify=side, header_style="bold")  # type: ignore[arg-type]
    for row in block.rows:
        table.add_row(*row)
    out.print()
    out.print(table)
    if block.meaning:
        out.print(Text(block.meaning, style="dim"))


def _single(summary: Json) -> Iterator[Block]:
    """All there is to say of one setting."""
    one = summary["settings"][0]
    yield _fates(one, summary)
    yield _ratios(summary)
    yield _apart(summary)
    yield _losses(one)
    for key, column in (("positions", "position"), ("steps", "step"), ("domains", "domain")):
        if len(one[key]) > 1:
            yield _parts(one[key], column)


def _fates(one: Json, summary: Json) -> Block:
    clip, still = one["clip"], one["no_gradient"]
    count = summary["tokens"]["policy"]
    low, high = (one["bounds"][side] for side in ("low", "high"))
    labels = {
        "low": "clipped, too low" if low is None else f"clipped, ratio < {low:.5g}",
        "high": "clipped, too high" if high is None else f"clipped, ratio > {high:.5g}",
        **({"dual": "clipped by the dual clip"} if clip["dual"]["tokens"] else {}),
    }
    rows = [(label, *_clipped(clip[branch])) for branch, label in labels.items()]
    reasons = {
        "zero_advantage": "no gradient: A = 0",
        "clipped": "no gradient: clipped",
        "other": "no gradient: other",
    }
    for name, label in reasons.items():
        if still[name] or name != "other":
            share = still[name] / count if count else 0.0
            rows.append((label, f"{still[name]:,}", percent(share), "", ""))
    rows.append(
        ("no gradient, together", f"{still['tokens']:,}", percent(still["fraction"]), "", "")
    )
    rows.append(
        (
            "responses without gradient",
            f"{still['responses']:,}",
            percent(still["response_fraction"]),
            "",
            "",
        )
    )
    headings = ("what becomes of tokens", "tokens", "share", "of A > 0", "of A < 0")
    return Block(headings, rows, _clip_meaning(clip["any"]["tokens"], still["clipped"]))


def _clipped(branch: Json) -> tuple[str, str, str, str]:
    signs = (branch["positive"], branch["negative"])
    shares = (percent(one["fraction"]) if one["tokens"] else "–" for one in signs)
    return f"{branch['tokens']:,}", percent(branch["fraction"]), *shares  # type: ignore[return-value]


def _clip_meaning(clipped: int, still: int) -> str:
    text = "A is a token's advantage. Without gradient a token teaches nothing.\n"
    if not clipped:
        return text + "No ratio reached a bound."
    if not still:
        return text + "Clipped tokens keep their gradient here; only its weight is bounded."
    return text + "Clipped tokens went far enough in A's direction, so the loss lets them be."


def _ratios(summary: Json) -> Block:
    ratio = summary["ratio"]
    quantiles = ratio["quantiles"] or {}
    values = (
        ratio["mean"],
        ratio["min"],
        *(quantiles.get(share) for share in ("0.01", "0.5", "0.99")),
        ratio["max"],
    )
    rows = [("ratio of a token", *map(number, values))]
    own = summary["settings"][0]["own_ratio"] if len(summary["settings"]) == 1 else None
    if own:
        name = summary["settings"][0]["options"]["loss"]
        ends = (number(own["mean"]), number(own["min"]), "", "", "", number(own["max"]))
        rows.append((f"ratio of {name}", *ends))
    return Block(("", "mean", "min", "1 %", "median", "99 %", "max"), rows)


def _apart(summary: Json) -> Block:
    kl, engine = summary["kl"], summary["engine_kl"]
    rows = [("KL(old ‖ current)", number(kl["k1"]), number(kl["k3"]))]
    if engine:
        rows.append(
            ("KL(rollout engine ‖ trainer's old)", number(engine["k1"]), number(engine["k3"]))
        )
    meaning = "Two estimates, in nats per token; k3 is never negative and varies less."
    if summary["ess"] is not None:
        ess = percent(summary["ess"])
        meaning += f"\nEffective sample size: {ess} of the tokens, as the ratios weigh them."
    return Block(("how far policies are apart", "k1", "k3"), rows, meaning)


def _losses(one: Json) -> Block:
    batches, options = one["batches"], one["options"]
    shown = _few(batches)
    headings = ("loss by batch", "policy", "KL", "total")
    rows = [
        (str(b["batch"]), number(b["policy"]), number(b["kl"]), number(b["total"])) for b in shown
    ]
    if len(batches) > 1:
        own = one["loss"]
        rows.append(("mean", number(own["policy"]), number(own["kl"]), number(own["total"])))
    meaning = f"Aggregated by {one['aggregation']}."
    if one["loss"]["kl"] is not None:
        estimator, beta = options["kl_loss_estimator"], options["kl_loss_coef"]
        meaning += f" KL from the reference ({estimator}); its coefficient is {number(beta)}."
    return Block(headings, rows, meaning)


def _parts(parts: list[Json], column: str) -> Block:
    rows = []
    for part in _few(parts):
        clip = part["clip"]
        rows.append(
            (
                _position(part) if column == "position" else str(part[column]),
                f"{part['tokens']:,}",
                *(percent(clip[branch]["fraction"]) for branch in ("low", "high")),
                percent(part["no_gradient"]["fraction"]),
                number(part["ratio"]["mean"]),
                number(part["kl"]["k3"]),
                "–" if part["ess"] is None else f"{100 * part['ess']:.1f} %",
            )
        )
    headings = (f"by {column}", "tokens", "low", "high", "no grad", "ratio", "KL k3", "ESS")
    return Block(headings, rows)


def _position(part: Json) -> str:
    return f"{part['from']}–{part['to']}" if part["to"] is not None else f"{part['from']} on"


def _few(rows: list[Json]) -> list[Json]:
    """The first and the last of many."""
    return rows if len(rows) <= MOST_ROWS else [*rows[: MOST_ROWS // 2], *rows[-MOST_ROWS // 2 :]]


def _sweep(summary: Json) -> Iterator[Block]:
    """A row for each setting, and what they share."""
    settings = summary["settings"]
    names = list(settings[0]["swept"])
    dual = any(one["clip"]["dual"]["tokens"] for one in settings)
    branches = ("low", "high", "dual") if dual else ("low", "high")
    rows = [
        (
            *(_word(one["swept"][name]) for name in names),
            *(percent(one["clip"][branch]["fraction"]) for branch in branches),
            percent(one["no_gradient"]["fraction"]),
            percent(one["no_gradient"]["response_fraction"]),
            number(one["loss"]["total"]),
        )
        for one in settings
    ]
    headings = (*names, *branches, "no grad", "responses", "mean loss")
    yield Block(
        headings,
        rows,
        "low, high: tokens clipped since their ratio is too low or too high; no grad:\n"
        "tokens that teach nothing; responses: those without a token that does.",
    )
    yield _ratios(summary)
    yield _apart(summary)


def _word(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _close(summary: Json, out: Console) -> None:
    """Warnings, columns and times."""
    out.print()
    for text in summary["warnings"]:
        out.print(Text(f"! {text}", style="yellow"))
    named = ", ".join(
        role if role == facts["column"] else f"{role} = {facts['column']} ({facts['found_by']})"
        for role, facts in summary["roles"].items()
    )
    out.print(Text(f"Columns: {named}", style="dim"))
    seconds = summary["seconds"]["total"]
    rate = summary["tokens"]["all"] / seconds / 1e6 if seconds else 0.0
    out.print(Text(f"{seconds:.2f} s, {rate:.2f} M tokens/s", style="dim"))
