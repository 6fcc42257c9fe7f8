"""What people see of `rlpost loss`: tables with a line on what their numbers mean.

The sentences of `rlpost loss`: what was asked for, and what its numbers mean for each loss.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from rlpost.display.console import console
from rlpost.display.tables import MOST_ROWS, show_json, show_markdown
from rlpost.display.text import number, percent
from rlpost.io.text import printable, printable_line
from rlpost.recipe.loss import ABOUT_AGGREGATIONS, word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console


MASKING = ("dppo", "ipo", "ref_kl")
_SMOOTH = {
    "pg": "This loss has no ratio, so it clips nothing.",
    "gpg": "This loss has no ratio, so it clips nothing.",
    "kimi15": "This loss clips nothing; the squared log ratio holds the policy back.",
    "sapo": "This loss clips nothing; its gate fades gradients out.",
}
# How options are called in formulas; those of one loss only, but for the clip range.
_SYMBOLS = {
    "dual_clip": "c",
    "kimi_tau": "τ",
    "sapo_tau_pos": "τ where A > 0",
    "sapo_tau_neg": "τ elsewhere",
    "tis_low": "low",
    "tis_high": "high",
    "topr_positive": "factor where reward > 0",
    "topr_negative": "factor elsewhere",
    "prob_mask": "δ",
    "square_coef": "κ",
}


def title(summary: Json) -> str:
    """What was run."""
    settings = summary["settings"]
    if len(settings) > 1:
        swept = ", ".join(settings[0]["swept"])
        text = f"rlpost loss · {len(settings)} settings of {swept}"
    else:
        text = f"rlpost loss · {settings[0]['options']['loss']} ({settings[0]['source']})"
    return text + (f", as {summary['preset']} has it" if summary.get("preset") else "")


def about(summary: Json) -> Iterator[str]:
    """What it was run on, a line each."""
    tokens, settings = summary["tokens"], summary["settings"]
    yield ", ".join(summary["inputs"][:2]) + (" and more" if len(summary["inputs"]) > 2 else "")  # noqa: PLR2004
    if summary["outputs"]:
        yield "  → " + ", ".join(summary["outputs"][:2])
    share = tokens["policy"] / tokens["all"] if tokens["all"] else 0.0
    yield (
        f"{summary['responses']:,} responses, {tokens['all']:,} tokens; {percent(share)} of them "
        "count"
    )
    yield f"advantages: {_advantages(summary)}"
    yield f"ratio: {_ratio(summary, summary['behaviour'])}, how much likelier training made a token"
    if len({one["options"]["behaviour"] for one in settings}) > 1:
        yield f"  with behaviour infer {_ratio(summary, 'infer')}, which tables below leave out"
    if len(settings) == 1:
        yield f"loss of a token: {settings[0]['formula']}"
        values = parameters(settings[0]["options"])
        if values:
            yield f"  where {values}"


def _advantages(summary: Json) -> str:
    if all(one["options"]["loss"] == "ref_kl" for one in summary["settings"]):
        return "not read by this loss; the reference takes their place"
    if not summary["estimator"]:
        return f"the input's column {summary['advantages_from']}"
    by = summary["asked_estimator"] or summary["estimator"]
    way = f"made here by {by}"
    if summary.get("preset"):
        way += f", as {summary['preset']} makes them"
    if summary["advantages_aside"] is None:
        return f"{way}, since the input has none"
    return f"{way}; the input's {summary['advantages_aside']} are left aside"


def _ratio(summary: Json, behaviour: str) -> str:
    roles = {role: facts["column"] for role, facts in summary["roles"].items()}
    return f"exp({roles['log_probs']} - {roles[behaviour + '_log_probs']})"


def parameters(options: Mapping[str, Any]) -> str:
    """The values that the symbols of a formula have."""
    found = []
    if "pg_clip" in options:
        found.append(f"ε = {word(options['pg_clip'])}")
    elif "pg_clip_low" in options:
        meaning = "bounds" if options.get("cispo_bounds") == "ratio" else "ε"
        sides = (("below", options["pg_clip_low"]), ("above", options["pg_clip_high"]))
        ends = (f"{word(x)} {side}" if x != "never" else f"none {side}" for side, x in sides)
        found.append(f"{meaning} = {', '.join(ends)}")
    masks = [options[name] for name in ("prob_mask_low", "prob_mask_high") if name in options]
    for name, symbol in _SYMBOLS.items():
        shown = name in options and options[name] != "never"
        if shown and (name != "prob_mask" or not masks):
            found.append(f"{symbol} = {word(options[name])}")
        elif shown and len({*masks}) == 1:
            found.append(f"{symbol} = {word(masks[0])}")
        elif shown:
            falls, rises = (word(options[f"prob_mask_{side}"]) for side in ("low", "high"))
            found.append(f"δ = {falls} falling, {rises} rising")
    if options.get("ratio_clamp", "never") != "never":
        found.append(f"|log r| ≤ {word(options['ratio_clamp'])}")
    if options.get("ratio_cap", "never") != "never":
        found.append(f"log r ≤ {word(options['ratio_cap'])}")
    return ", ".join(found)


def branch_labels(one: Json) -> dict[str, str]:
    """The rows of what is clipped: those that the loss has."""
    options, clip, bounds = one["options"], one["clip"], one["bounds"]
    if options["loss"] in MASKING:
        low = options.get("prob_mask_low", options["prob_mask"])
        labels = {"low": f"masked, π fell by > {word(low)}"}
        if options["loss"] != "ref_kl":
            high = options.get("prob_mask_high", options["prob_mask"])
            labels["high"] = f"masked, π rose by > {word(high)}"
        return labels
    signs = {"low": "<", "high": ">"}
    labels = {
        side: f"clipped, ratio {sign} {bounds[side]:.5g}"
        for side, sign in signs.items()
        if bounds[side] is not None
    }
    return labels | ({"dual": "clipped by the dual clip"} if clip["dual"]["tokens"] else {})


def reason_labels(one: Json) -> dict[str, str]:
    """The rows of why there is no gradient: those that occur, and those that the loss is for."""
    name, still = one["options"]["loss"], one["no_gradient"]
    nothing = "π = π_ref" if name == "ref_kl" else "A = 0"
    labels = {"zero_advantage": f"no gradient: {nothing}"}
    if still["clipped"] or name in ("ppo", "gspo", "geo_mean"):
        labels["clipped"] = f"no gradient: {'masked' if name in MASKING else 'clipped'}"
    return labels | ({"other": "no gradient: other"} if still["other"] else {})


def fate_note(one: Json) -> str:
    """What the rows of clipping and of gradients mean under this loss."""
    name = one["options"]["loss"]
    what = "log π_ref - log π, this loss's advantage" if name == "ref_kl" else "a token's advantage"
    return f"A is {what}. Without gradient a token teaches nothing.\n{_clipped_words(one)}"


def _clipped_words(one: Json) -> str:
    options, clip, still = one["options"], one["clip"], one["no_gradient"]["clipped"]
    name, kappa = options["loss"], options.get("square_coef")
    if name in _SMOOTH:
        return _SMOOTH[name]
    if not clip["any"]["tokens"]:
        moved = "probability moved beyond" if name in MASKING else "ratio reached"
        return f"No {moved} a bound."
    if name in MASKING:
        if kappa:
            return "Masked tokens lose -A·r; their gradient is that of κ(log r)², which pulls back."
        return "Masked tokens have no gradient."
    if options.get("cispo_mask"):
        text = (
            "Clipped tokens that went far in A's direction are masked; the others keep their\n"
            "gradient, whose weight is bounded."
        )
    elif not still:
        text = "Clipped tokens keep their gradient here; only its weight is bounded."
    else:
        text = _let_be(clip)
    return text


def _let_be(clip: Json) -> str:
    text = "Clipped tokens went far enough in A's direction, so the loss lets them be."
    if clip["dual"]["tokens"]:
        text += "\nThe dual clip lets be those with A < 0 that went far the other way."
    return text


def loss_note(one: Json) -> str:
    """How the losses of tokens became those of batches."""
    options, how = one["options"], one["aggregation"]
    text = f"Aggregated by {how}: {ABOUT_AGGREGATIONS[how]}."
    if one["loss"]["kl"] is None:
        return text
    estimator, beta = options["kl_loss_estimator"], options["kl_loss_coef"]
    text += f"\nKL is from the reference ({estimator}); its coefficient is {number(beta)}."
    if one["kl_clamped"]:
        bound = number(options["kl_loss_clamp"])
        text += f"\nIt was clamped to ±{bound} nats at {one['kl_clamped']:,} tokens."
    return text


Json = dict[str, Any]
_GAP = 2  # columns between numbers
_ENDLESS = 1_000_000


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
    out = console(sys.stdout)
    plain = how == "markdown" or not out.is_terminal
    found = _sweep(summary, _ENDLESS if plain else out.width) if several else _single(summary)
    if how == "markdown":
        _show_markdown(summary, list(found))
        return
    out.print(Text(title(summary), style="bold"))
    for line in about(summary):
        out.print(Text(line))
    for block in found:
        _print(block, out)
    _close(summary, out)


def _show_markdown(summary: Json, blocks: Sequence[Block]) -> None:
    """The same as a page of Markdown, on stdout."""
    said = (*about(summary), *(f"**{text}**" for text in summary["warnings"]))
    lines = [f"# {title(summary)}", "", *(f"- {line.strip()}" for line in said)]
    sys.stdout.write(_prose("\n".join(lines)))
    for block in blocks:
        sys.stdout.write("\n")
        show_markdown(block.headings, block.rows)
        if block.meaning:
            sys.stdout.write(f"\n{_prose(block.meaning)}")


def _prose(text: str) -> str:
    """Lines of Markdown in which nothing is a tag."""
    return printable(text).replace("<", "&lt;") + "\n"


def _print(block: Block, out: Console) -> None:
    out.print()
    out.print(_laid_out(block, out))
    if block.meaning:
        out.print(Text(block.meaning, style="dim"))


def _laid_out(block: Block, out: Console) -> Table | Text:
    """A block as a table whose numbers are whole; as lines, where that has no room."""
    numbers = list(zip(block.headings, *block.rows, strict=True))[1:]
    room = out.width - sum(max(map(len, column)) + _GAP for column in numbers)
    labels = " ".join((block.headings[0], *(row[0] for row in block.rows)))
    if out.is_terminal and room < max(map(len, labels.split()), default=0):
        return Text("\n".join(_stacked(block)))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for place, heading in enumerate(block.headings):
        side = "right" if place else "left"
        table.add_column(heading, justify=side, header_style="bold", no_wrap=place > 0)  # type: ignore[arg-type]
    for row in block.rows:
        table.add_row(*map(printable_line, row))
    return table


def _stacked(block: Block) -> Iterator[str]:
    """The rows of a block below one another, a number a line."""
    width = max(map(len, block.headings))
    for label, *values in block.rows:
        yield f"{block.headings[0]} {label}".strip()
        for heading, value in zip(block.headings[1:], values, strict=True):
            if value:
                yield f"  {heading:<{width}}  {value}"


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
    rows = [(label, *_clipped(clip[side])) for side, label in branch_labels(one).items()]
    for name, label in reason_labels(one).items():
        rows.append(_share(label, still[name], still[name] / count if count else 0.0))
    together, alone = still["tokens"], still["responses"]
    rows.append(_share("no gradient, together", together, still["fraction"]))
    rows.append(_share("responses without gradient", alone, still["response_fraction"]))
    headings = ("what becomes of tokens", "tokens", "share", "of A > 0", "of A < 0")
    return Block(headings, rows, fate_note(one))


def _share(label: str, count: int, share: float) -> tuple[str, str, str, str, str]:
    return label, f"{count:,}", percent(share), "", ""


def _clipped(branch: Json) -> tuple[str, str, str, str]:
    signs = (branch["positive"], branch["negative"])
    shares = (percent(one["fraction"]) if one["tokens"] else "–" for one in signs)
    return f"{branch['tokens']:,}", percent(branch["fraction"]), *shares  # type: ignore[return-value]


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
    note = "Quantiles are within 1/64 of the ratio's logarithm; mean, min and max are exact."
    return Block(("", "mean", "min", "1 %", "median", "99 %", "max"), rows, note)


def _apart(summary: Json) -> Block:
    kl, engine = summary["kl"], summary["engine_kl"]
    before = "rollout engine" if summary["behaviour"] == "infer" else "old"
    rows = [(f"KL({before} ‖ current)", number(kl["k1"]), number(kl["k3"]))]
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
    batches = one["batches"]
    shown = _few(batches)
    headings = ("loss by batch", "policy", "KL", "total")
    rows = [
        (str(b["batch"]), number(b["policy"]), number(b["kl"]), number(b["total"])) for b in shown
    ]
    if len(batches) > 1:
        own = one["loss"]
        rows.append(("mean", number(own["policy"]), number(own["kl"]), number(own["total"])))
    return Block(headings, rows, loss_note(one))


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


def _sweep(summary: Json, width: int) -> Iterator[Block]:
    """A row for each setting, and what they share."""
    settings = summary["settings"]
    dual = any(one["clip"]["dual"]["tokens"] for one in settings)
    branches = ("low", "high", "dual") if dual else ("low", "high")
    headings = ("setting", *branches, "no grad", "responses", "mean loss")
    rows = [
        (
            ", ".join(f"{name} {_word(value)}" for name, value in one["swept"].items()),
            *(percent(one["clip"][branch]["fraction"]) for branch in branches),
            percent(one["no_gradient"]["fraction"]),
            percent(one["no_gradient"]["response_fraction"]),
            number(one["loss"]["total"]),
        )
        for one in settings
    ]
    note = (
        "low, high: tokens clipped or masked since they went too far down or up; no grad:\n"
        "tokens that teach nothing; responses: those without a token that does."
    )
    names = list(settings[0]["swept"])
    split = [
        (*map(_word, one["swept"].values()), *row[1:])
        for one, row in zip(settings, rows, strict=True)
    ]
    apart = Block((*names, *headings[1:]), split, note)
    yield apart if _width(apart) <= width else Block(headings, rows, note)
    yield _ratios(summary)
    yield _apart(summary)


def _width(block: Block) -> int:
    columns = list(zip(block.headings, *block.rows, strict=True))
    return sum(max(map(len, column)) + _GAP for column in columns) - _GAP


def _word(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _close(summary: Json, out: Console) -> None:
    """Warnings, columns and times."""
    out.print()
    for text in summary["warnings"]:
        out.print(Text(f"! {printable_line(text)}", style="yellow"))
    named = ", ".join(
        role if role == facts["column"] else f"{role} = {facts['column']} ({facts['found_by']})"
        for role, facts in summary["roles"].items()
    )
    out.print(Text(f"Columns: {printable_line(named)}", style="dim"))
    seconds = summary["seconds"]["total"]
    rate = summary["tokens"]["all"] / seconds / 1e6 if seconds else 0.0
    out.print(Text(f"{seconds:.2f} s, {rate:.2f} M tokens/s", style="dim"))
