"""The summary of `rlpost loss` as text: on a terminal, in a pipe, as Markdown or JSON."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpost.analysis.loss.log import log_tables
from rlpost.display.console import console
from rlpost.display.page import Notice, Page, show_page
from rlpost.display.tables import MOST_ROWS, TextTable, elided, show_json
from rlpost.display.text import aligned, counted, number, percent, role_columns, run_times
from rlpost.display.trends import Trend, trend_table
from rlpost.recipe.loss import ABOUT_AGGREGATIONS, KlClamp, behaviour_role, word
from rlpost.recipe.recipe import PROXIMAL
from rlpost.render.summary import unit_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console


Json = dict[str, Any]
_STATES = {
    "low": "clipped or masked, low",
    "high": "clipped or masked, high",
    "dual": "above the dual clip or a cap",
    "selected": "selected",
}
# The symbols of options in formulas; others have their names.
_SYMBOLS = {
    "pg_clip": "ε",
    "dual_clip": "c",
    "tau": "τ",
    "tau_pos": "τ if A > 0",
    "tau_neg": "τ otherwise",
    "prob_mask": "δ",
    "kl_mask": "δ",
    "weight_cap": "c",
    "square_coef": "κ",
    "beta": "β",
    "coef": "β",
}
_UNLIMITED = 1_000_000
_GAP = 2  # blanks between the columns of a table


def show(summary: Json, how: str, out: Console | None = None, *, verbose: bool = False) -> None:
    """Print the summary of a run on stdout, as a `table`, as `json` or as `markdown`."""
    if how == "json":
        show_json(summary)
        return
    out = out or console(sys.stdout)
    width = out.width if how == "table" and out.is_terminal else _UNLIMITED
    show_page(page(summary, verbose=verbose, width=width), how, out)


def page(summary: Json, *, verbose: bool = False, width: int = _UNLIMITED) -> Page:
    """Return the page of a run, whose first line is the share of clipped tokens.

    Args:
        summary: of the run.
        verbose: with columns, times and bytes.
        width: of a sweep's table, which is narrower if it has to be.
    """
    swept = len(summary["settings"]) > 1
    parts = [sweep_table(summary, width)] if swept else [*_single(summary)]
    if swept and verbose:
        parts += [_ratios(summary), _divergence(summary)]
    if "log" in summary:
        parts += log_tables(summary["log"], verbose=verbose)
    if verbose:
        parts.append(TextTable(title="Run", lines=[*_run_lines(summary)]))
    texts = [*summary["warnings"], *(finding["text"] for finding in summary.get("findings", ()))]
    warnings = [Notice("warning", text) for text in texts]
    return Page(title(summary), [*header(summary)], parts, warnings, _verdict(summary))


def title(summary: Json) -> str:
    """Return the input and the loss, or the options of a sweep."""
    configs = summary["settings"]
    what = configs[0]["options"]["loss"]
    if len(configs) > 1:
        what = f"{len(configs)} settings of {', '.join(configs[0]['swept'])}"
    preset = f", preset {summary['preset']}" if summary.get("preset") else ""
    return f"rlpost loss · {_few_paths(summary['inputs'])} · {what}{preset}"


def _verdict(summary: Json) -> Notice | None:
    """Return the outcome: no gradient at all, or what was written; None of numbers alone."""
    if summary["tokens"]["policy"] and all(
        setting["no_gradient"]["fraction"] == 1 for setting in summary["settings"]
    ):
        return Notice("error", "Nothing to learn: no token has a gradient")
    if summary["outputs"]:
        columns = ", ".join(summary["new_columns"])
        return Notice("ok", f"{_few_paths(summary['outputs'])} written: {columns}")
    return None


def header(summary: Json) -> Iterator[str]:
    """Yield the lines below the title: the answer, the input, the ratio and the formula."""
    tokens, configs = summary["tokens"], summary["settings"]
    yield from _answer(summary)
    share = tokens["policy"] / tokens["all"] if tokens["all"] else 0.0
    yield (
        f"{counted(summary['responses'], 'response')}, {counted(tokens['all'], 'token')} "
        f"({percent(share)} in the loss); advantages: {_advantages(summary)}"
    )
    if summary["unit"]:
        yield from unit_line(**summary["unit"])
    if len(configs) == 1:
        values = parameters(configs[0]["options"])
        yield f"loss of a token: {configs[0]['formula']}{f'; {values}' if values else ''}"
    yield f"ratio r: {_ratio_formula(summary, summary['behaviour'])}{_same_ratio(summary)}"
    others = dict.fromkeys(setting["options"]["behaviour"] for setting in configs)
    for behaviour in [policy for policy in others if policy != summary["behaviour"]]:
        yield (
            f"ratio with behaviour {behaviour}: {_ratio_formula(summary, behaviour)}, which no "
            "number of ratio and KL here is of"
        )


def _answer(summary: Json) -> Iterator[str]:
    """Yield which share of the tokens is clipped, and which has no gradient."""
    settings, tokens = summary["settings"], summary["tokens"]["policy"]
    of = f"of {counted(tokens, 'policy token')}"
    shares = {
        "clipped or masked": [setting["clip"]["any"]["fraction"] for setting in settings],
        "without gradient": [setting["no_gradient"]["fraction"] for setting in settings],
    }
    if len(settings) == 1:
        (clipped,), (flat,) = shares.values()
        yield f"{percent(clipped)} {of} are clipped or masked; {percent(flat)} have no gradient"
        return
    names = [setting_name(setting) for setting in settings]
    for what, values in shares.items():
        (low, first), *_, (high, last) = sorted(zip(values, names, strict=True))
        span = f"{percent(low)} in all settings"
        if low != high:
            span = f"{percent(low)} ({first}) to {percent(high)} ({last})"
        yield f"{what}: {span}, {of}"


def _same_ratio(summary: Json) -> str:
    """Return ratio and KL of a sweep, which are the same for all settings, for its header."""
    if len(summary["settings"]) == 1 or summary["ratio"]["quantiles"] is None:
        return ""
    ratio, quantiles = summary["ratio"], summary["ratio"]["quantiles"]
    ends = f"1 to 99 % {number(quantiles['0.01'])} to {number(quantiles['0.99'])}"
    return (
        f": mean {number(ratio['mean'])}, {ends}; KL k3 {number(summary['kl']['k3'])}, effective "
        f"sample size {percent(summary['ess'])}"
    )


def _few_paths(paths: Sequence[str]) -> str:
    most = 2
    rest = f" and {len(paths) - most:,} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + rest


def _advantages(summary: Json) -> str:
    if all(setting["options"]["loss"] == "ref_kl" for setting in summary["settings"]):
        return "not read by this loss; it uses the log ratio to the reference"
    if not summary["estimator"]:
        return f"column {summary['advantages_from']} of the input"
    text = f"computed by {summary.get('requested_estimator') or summary['estimator']}"
    if summary.get("preset"):
        text += f", preset {summary['preset']}"
    if summary["unused_advantages"] is None:
        return f"{text}, since the input has none"
    return f"{text}; column {summary['unused_advantages']} of the input is not used"


def _ratio_formula(summary: Json, behaviour: str) -> str:
    roles = {role: facts["column"] for role, facts in summary["roles"].items()}
    new, old = roles["log_probs"], roles[behaviour_role(behaviour)]
    if behaviour in PROXIMAL:
        old = f"{behaviour}({old}, {new})"
    return f"exp({new} - {old})"


def parameters(options: Mapping[str, Any]) -> str:
    """Return the values of the options in a formula."""
    fields = {name: options[name] for name in ("pg_clip", "dual_clip") if name in options}
    values = {**fields, **options.get("loss_options", {})}
    values = {name: value for name, value in values.items() if value != "never"}
    texts = [f"{_SYMBOLS.get(name, name)} = {word(value)}" for name, value in values.items()]
    if options.get("ratio_clamp", "never") != "never":
        texts.append(f"|log r| ≤ {word(options['ratio_clamp'])}")
    return ", ".join(texts)


def _single(summary: Json) -> Iterator[TextTable]:
    """Yield the tables of one config."""
    setting = summary["settings"][0]
    yield _outcomes(setting, summary["tokens"]["policy"])
    yield _ratios(summary)
    yield _divergence(summary)
    yield _losses(setting)
    for key, column in (("positions", "position"), ("steps", "step"), ("domains", "domain")):
        if len(setting[key]) > 1:
            yield _parts(setting[key], column)


def _outcomes(setting: Json, tokens: int) -> TextTable:
    clip, zero = setting["clip"], setting["no_gradient"]
    rows: list[tuple[str, ...]]
    rows = [(label, *_clipped(clip[side])) for side, label in branch_labels(setting).items()]
    reasons = {name: zero[name] for name in ("zero_advantage", "clipped", "other") if zero[name]}
    labels = {"zero_advantage": "A = 0", "clipped": "clipped or selected", "other": "other"}
    for name, count in reasons.items():
        rows.append(_share(f"zero gradient: {labels[name]}", count, count / tokens))
    if len(reasons) != 1:
        rows.append(_share("zero gradient, total", zero["tokens"], zero["fraction"]))
    rows.append(
        _share("responses with zero gradient", zero["responses"], zero["response_fraction"])
    )
    note = "A: advantage of the token"
    if setting["options"]["loss"] == "ref_kl":
        note = "A: log π_ref - log π of the token, which this loss uses as its advantage"
    headings = ("token outcomes", "count", "share", "of A > 0", "of A < 0")
    notes = [f"{note}. Zero gradient: the token does not update the policy."]
    return TextTable(headings, rows, notes=notes)


def _share(label: str, count: int, share: float) -> tuple[str, str, str, str, str]:
    return label, f"{count:,}", percent(share), "", ""


def _clipped(branch: Json) -> tuple[str, str, str, str]:
    positive, negative = (
        percent(sign["fraction"]) if sign["tokens"] else "–"
        for sign in (branch["positive"], branch["negative"])
    )
    return f"{branch['tokens']:,}", percent(branch["fraction"]), positive, negative


def branch_labels(setting: Json) -> dict[str, str]:
    """Return the clip states that the loss has, or that occur, each with the label of its row."""
    bounds, labels = setting["bounds"], {}
    for side, label in _STATES.items():
        bound = bounds.get(side)
        if bound is not None:
            labels[side] = f"clipped, ratio {'<' if side == 'low' else '>'} {bound:.5g}"
        elif setting["clip"][side]["tokens"]:
            labels[side] = label
    return labels


def _ratios(summary: Json) -> TextTable:
    ratio = summary["ratio"]
    quantiles = ratio["quantiles"] or {}
    values = (
        ratio["mean"],
        ratio["min"],
        *(quantiles.get(share) for share in ("0.01", "0.5", "0.99")),
        ratio["max"],
    )
    rows = [("token", *map(number, values))]
    used = summary["settings"][0]["loss_ratio"] if len(summary["settings"]) == 1 else None
    if used:
        name = summary["settings"][0]["options"]["loss"]
        ends = (number(used["mean"]), number(used["min"]), "", "", "", number(used["max"]))
        rows.append((f"response ({name})", *ends))
    return TextTable(("ratio", "mean", "min", "1 %", "median", "99 %", "max"), rows)


def _divergence(summary: Json) -> TextTable:
    kl, engine = summary["kl"], summary["engine_kl"]
    before = {"infer": "rollout engine"}.get(summary["behaviour"], summary["behaviour"])
    rows = [(f"KL({before} ‖ current)", number(kl["k1"]), number(kl["k3"]))]
    if engine:
        rows.append(("KL(rollout engine ‖ old)", number(engine["k1"]), number(engine["k3"])))
    notes = ["Estimators k1 and k3, nats per token; k3 is never negative and varies less."]
    if summary["ess"] is not None:
        notes.append(f"Effective sample size (Σr)²/(nΣr²): {percent(summary['ess'])} of n tokens.")
    return TextTable(("divergence between policies", "k1", "k3"), rows, notes=notes)


def _losses(setting: Json) -> TextTable:
    parts = {"policy": "policy"}
    if setting["loss"]["kl"] is not None:
        parts |= {"kl": "KL"}
        parts |= {"total": "total"} if setting["options"]["kl_loss_coef"] else {}
    batches = [*setting["batches"]]
    labels, notes = [str(batch["batch"]) for batch in batches], list(loss_notes(setting))
    if len(batches) > MOST_ROWS:
        trends = [Trend(f"{name} loss", [b[part] for b in batches]) for part, name in parts.items()]
        return replace(trend_table("batch", labels, trends), notes=notes)
    if len(batches) > 1:
        labels, batches = [*labels, "mean"], [*batches, setting["loss"]]
    columns = [aligned([batch[part] for batch in batches]) for part in parts]
    rows = [*zip(labels, *columns, strict=True)]
    return TextTable(("loss by batch", *parts.values()), rows, notes=notes)


def loss_notes(setting: Json) -> Iterator[str]:
    """Yield how token losses are aggregated, and what the KL loss is."""
    options, how = setting["options"], setting["aggregation"]
    yield f"Aggregation {how}: {ABOUT_AGGREGATIONS[how]}."
    if setting["loss"]["kl"] is None:
        return
    estimator, coefficient = options["kl_loss_estimator"], number(options["kl_loss_coef"])
    yield f"KL from the reference: estimator {estimator}, coefficient {coefficient}."
    if setting["kl_clamped"]:
        bound = number(KlClamp.of(options["kl_loss_clamp"]).bound)
        yield f"KL was clamped to ±{bound} nats at {counted(setting['kl_clamped'], 'token')}."


def _parts(parts: Sequence[Json], column: str) -> TextTable:
    labels = [_range(part) if column == "position" else str(part[column]) for part in parts]
    trends = [
        Trend("low", [part["clip"]["low"]["fraction"] for part in parts], share=True),
        Trend("high", [part["clip"]["high"]["fraction"] for part in parts], share=True),
        Trend("zero grad", [part["no_gradient"]["fraction"] for part in parts], share=True),
        Trend("ratio", [part["ratio"]["mean"] for part in parts]),
        Trend("KL k3", [part["kl"]["k3"] for part in parts]),
        Trend("ESS", [part["ess"] for part in parts], share=True),
    ]
    if column == "step" and len(parts) > MOST_ROWS:
        return trend_table(column, labels, [trend for trend in trends if len({*trend.values}) > 1])
    cells = [[*map(percent, x.values)] if x.share else aligned(x.values) for x in trends]
    tokens = [f"{part['tokens']:,}" for part in parts]
    headings = (f"by {column}", "tokens", *(trend.name for trend in trends))
    return TextTable(headings, elided([*zip(labels, tokens, *cells, strict=True)]))


def _range(part: Json) -> str:
    return f"{part['from']} to {part['to']}" if part["to"] is not None else f"from {part['from']}"


def _run_lines(summary: Json) -> Iterator[str]:
    """Yield the columns that were read, and the times."""
    yield f"columns: {role_columns(summary['roles'])}"
    yield from run_times(summary)


# ---- a sweep ----


def setting_name(setting: Json) -> str:
    """Return the swept options of a setting."""
    return ", ".join(f"{name} {_value(value)}" for name, value in setting["swept"].items())


def sweep_table(summary: Json, width: int) -> TextTable:
    """Return the table of settings.

    Args:
        summary: of a sweep.
        width: of the table; if it is wider, settings have numbers, and a column of names.
    """
    configs = summary["settings"]
    columns, notes = _columns(configs), [*_notes(configs)]
    headings, cells = [*columns], [*zip(*columns.values(), strict=True)]
    names = list(configs[0]["swept"])
    swept = [tuple(map(_value, setting["swept"].values())) for setting in configs]
    rows = [(*values, *row) for values, row in zip(swept, cells, strict=True)]
    text = tuple(range(len(names)))
    table = TextTable((*names, *headings), rows, notes=notes, text=text)
    if _width(table) > width:  # names may be below their rows
        labels = ((f"{index}", setting_name(setting)) for index, setting in enumerate(configs, 1))
        rows = [(*label, *row) for label, row in zip(labels, cells, strict=True)]
        table = TextTable(("", "setting", *headings), rows, notes=notes, text=(0, 1))
    return table


def _columns(configs: Sequence[Json]) -> dict[str, list[str]]:
    """Return the columns of numbers by heading."""
    more = [
        x for x in ("dual", "selected") if any(setting["clip"][x]["tokens"] for setting in configs)
    ]
    columns = {}
    if len({setting["tokens"] for setting in configs}) > 1:
        columns["tokens"] = [f"{setting['tokens']:,}" for setting in configs]
    columns["zero grad"] = [percent(setting["no_gradient"]["fraction"]) for setting in configs]
    for side in ("low", "high", *more):
        columns[side] = [percent(setting["clip"][side]["fraction"]) for setting in configs]
    columns["ESS"] = [percent(setting["gradient"]["ess"]) for setting in configs]
    columns["cosine"] = aligned([setting["gradient"]["cosine"] for setting in configs])
    return columns | {"mean loss": aligned([setting["loss"]["total"] for setting in configs])}


def _notes(configs: Sequence[Json]) -> Iterator[str]:
    """Yield what the columns are."""
    if len({setting["tokens"] for setting in configs}) > 1:
        yield "tokens: policy tokens that the correction accepts, of which the shares are."
    yield "low, high: tokens clipped or masked below or above a bound."
    yield "zero grad: tokens with zero gradient. g: gradient ∂L/∂log π of a policy token."
    yield "ESS: effective sample size of |g|, (Σ|g|)²/(nΣg²) of the n policy tokens."
    yield f"cosine: between g and that of {setting_name(configs[0])}."


def _width(table: TextTable) -> int:
    columns = zip(table.headings, *table.rows, strict=True)
    return sum(max(map(len, column)) + _GAP for column in columns) - _GAP


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
