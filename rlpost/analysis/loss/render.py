"""The summary of `rlpost loss` as text: on a terminal, in a pipe, as Markdown or JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpost.analysis.loss.log import log_tables
from rlpost.analysis.loss.summary import settings_of
from rlpost.display.page import Notice, Page
from rlpost.display.tables import MOST_ROWS, TextTable
from rlpost.display.text import aligned, counted, number, percent
from rlpost.recipe.loss import ABOUT_AGGREGATIONS, KlClamp, behaviour_role, word
from rlpost.recipe.recipe import PROXIMAL
from rlpost.render.summary import role_columns, run_times, unit_line
from rlpost.render.trends import Trend, slice_table, trend_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


Json = dict[str, Any]
_STATES = {
    "clipped_low": "clipped or masked, low",
    "clipped_high": "clipped or masked, high",
    "clipped_dual": "above the dual clip or a cap",
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


def page(summary: Json, *, verbose: bool = False) -> Page:
    """Return the page of a run, whose first line is the share of clipped tokens.

    Args:
        summary: of the run.
        verbose: with columns, times and bytes.
    """
    swept = "settings" in summary
    parts = [sweep_table(summary)] if swept else [*_single(summary)]
    if swept and verbose:
        parts += [_ratios(summary), _divergence(summary)]
    if "log" in summary:
        parts += log_tables(summary["log"], verbose=verbose)
    if verbose:
        parts.append(TextTable(title="Run", lines=[*_run_lines(summary)]))
    warnings = [Notice("warning", finding["text"]) for finding in summary["findings"]]
    return Page(title(summary), [*header(summary)], parts, warnings, _outcome(summary))


def title(summary: Json) -> str:
    """Return the input and the loss, or the options of a sweep."""
    settings = settings_of(summary)
    what = settings[0]["options"]["loss"]
    if len(settings) > 1:
        what = f"{len(settings)} settings of {', '.join(settings[0]['swept'])}"
    preset = f", preset {summary['preset']}" if summary.get("preset") else ""
    return f"rlpost loss · {_few_paths(summary['inputs'])} · {what}{preset}"


def _outcome(summary: Json) -> Notice:
    """Return what was written, else whether anything is learnt."""
    verdict = summary["verdict"]
    if verdict["level"] != "error" and summary["outputs"]:
        columns = ", ".join(summary["new_columns"])
        return Notice("ok", f"{_few_paths(summary['outputs'])} written: {columns}")
    return Notice(verdict["level"], verdict["text"])


def of_all(facts: Json, name: str, key: str = "mean") -> Any:
    """Return a statistic of a measure of the whole input; None if it has none."""
    return facts[name]["all"].get(key) if name in facts else None


def header(summary: Json) -> Iterator[str]:
    """Yield the lines below the title: the answer, the input, the ratio and the formula."""
    tokens, settings = summary["tokens"], settings_of(summary)
    yield from _answer(settings, tokens["policy"])
    share = tokens["policy"] / tokens["all"] if tokens["all"] else 0.0
    yield (
        f"{counted(summary['responses'], 'response')}, {counted(tokens['all'], 'token')} "
        f"({percent(share)} in the loss); advantages: {_advantages(summary)}"
    )
    if summary["unit"]:
        yield from unit_line(**summary["unit"])
    if len(settings) == 1:
        values = parameters(settings[0]["options"])
        yield f"loss of a token: {settings[0]['formula']}{f'; {values}' if values else ''}"
    yield f"ratio r: {_ratio_formula(summary, summary['behaviour'])}{_same_ratio(summary)}"
    others = dict.fromkeys(setting["options"]["behaviour"] for setting in settings)
    for behaviour in [policy for policy in others if policy != summary["behaviour"]]:
        yield (
            f"ratio with behaviour {behaviour}: {_ratio_formula(summary, behaviour)}, which no "
            "number of ratio and KL here is of"
        )


def _answer(settings: Sequence[Json], tokens: int) -> Iterator[str]:
    """Yield which share of the tokens is clipped, and which has no gradient."""
    of, names = f"of {counted(tokens, 'policy token')}", ("clipped", "no_gradient")
    shares = [[of_all(setting["facts"], name) or 0.0 for setting in settings] for name in names]
    if len(settings) == 1:
        (clipped,), (flat,) = shares
        yield f"{percent(clipped)} {of} are clipped or masked; {percent(flat)} have no gradient"
        return
    labels = [setting_name(setting) for setting in settings]
    for what, values in zip(("clipped or masked", "without gradient"), shares, strict=True):
        (low, first), *_, (high, last) = sorted(zip(values, labels, strict=True))
        span = f"{percent(low)} in all settings"
        if low != high:
            span = f"{percent(low)} ({first}) to {percent(high)} ({last})"
        yield f"{what}: {span}, {of}"


def _same_ratio(summary: Json) -> str:
    """Return ratio and KL of a sweep, which are the same for all settings, for its header."""
    facts = summary["facts"]
    quantiles = of_all(facts, "ratio", "quantiles")
    if "settings" not in summary or quantiles is None:
        return ""
    ends = f"1 to 99 % {number(quantiles['0.01'])} to {number(quantiles['0.99'])}"
    return (
        f": mean {number(of_all(facts, 'ratio'))}, {ends}; KL k3 "
        f"{number(of_all(facts, 'policy_k3'))}, effective sample size "
        f"{percent(of_all(facts, 'ratio_ess', 'value'))}"
    )


def _few_paths(paths: Sequence[str]) -> str:
    most = 2
    rest = f" and {len(paths) - most:,} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + rest


def _advantages(summary: Json) -> str:
    if all(setting["options"]["loss"] == "ref_kl" for setting in settings_of(summary)):
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
    yield _outcomes(summary)
    yield _ratios(summary)
    yield _divergence(summary)
    yield _losses(summary)
    for key in ("position", "step", "domain"):
        if len(summary["facts"]["ratio"].get(key, {"label": ()})["label"]) > 1:
            yield _parts(summary["facts"], key)


def _outcomes(setting: Json) -> TextTable:
    facts, rows = setting["facts"], []
    for state, label in branch_labels(setting).items():
        signed = [_share(facts, f"{state}_{sign}") for sign in ("positive", "negative")]
        of_signs = ("–" if total == "0" else share for total, share in signed)
        rows.append((label, *_share(facts, state), *of_signs))
    labels = {"zero_advantage": "A = 0", "clipped": "clipped or selected", "other": "other"}
    reasons = {f"no_gradient_{x}": label for x, label in labels.items()}
    reasons = {x: label for x, label in reasons.items() if of_all(facts, x, "total")}
    rows += [(f"zero gradient: {label}", *_share(facts, x), "", "") for x, label in reasons.items()]
    if len(reasons) != 1:
        rows.append(("zero gradient, total", *_share(facts, "no_gradient"), "", ""))
    rows.append(("responses with zero gradient", *_share(facts, "no_gradient_responses"), "", ""))
    note = "A: advantage of the token"
    if setting["options"]["loss"] == "ref_kl":
        note = "A: log π_ref - log π of the token, which this loss uses as its advantage"
    headings = ("token outcomes", "count", "share", "of A > 0", "of A < 0")
    notes = [f"{note}. Zero gradient: the token does not update the policy."]
    return TextTable(headings, rows, notes=notes)


def _share(facts: Json, name: str) -> tuple[str, str]:
    """Return how many tokens or responses are so, and the share, 0 of none."""
    return f"{of_all(facts, name, 'total'):,}", percent(of_all(facts, name) or 0.0)


def branch_labels(setting: Json) -> dict[str, str]:
    """Return the clip states that the loss has, or that occur, each with the label of its row."""
    bounds, labels = setting["bounds"], {}
    for state, label in _STATES.items():
        bound = bounds.get(state.removeprefix("clipped_"))
        if bound is not None:
            labels[state] = f"clipped, ratio {'<' if state == 'clipped_low' else '>'} {bound:.5g}"
        elif of_all(setting["facts"], state, "total"):
            labels[state] = label
    return labels


def _ratios(summary: Json) -> TextTable:
    rows, facts = [], summary["facts"]
    of_loss = f"response ({settings_of(summary)[0]['options']['loss']})"
    for label, name in (("token", "ratio"), (of_loss, "loss_ratio")):
        if name in facts:
            entry = facts[name]["all"]
            shares = [""] * 3
            if "quantiles" in entry:
                quantiles = entry["quantiles"] or {}
                shares = [number(quantiles.get(x)) for x in ("0.01", "0.5", "0.99")]
            ends = [number(entry[x]) for x in ("mean", "min", "max")]
            rows.append((label, *ends[:2], *shares, ends[2]))
    return TextTable(("ratio", "mean", "min", "1 %", "median", "99 %", "max"), rows)


def _divergence(summary: Json) -> TextTable:
    facts, behaviour = summary["facts"], summary["behaviour"]
    before = {"infer": "rollout engine"}.get(behaviour, behaviour)
    k1, ess = of_all(facts, "log_ratio"), of_all(facts, "ratio_ess", "value")
    terms = {f"KL({before} ‖ current)": (k1 and -k1, of_all(facts, "policy_k3"))}
    if "engine_k1" in facts:
        engine = of_all(facts, "engine_k1"), of_all(facts, "engine_k3")
        terms["KL(rollout engine ‖ old)"] = engine
    rows = [(name, *map(number, pair)) for name, pair in terms.items()]
    notes = ["Estimators k1 and k3, nats per token; k3 is never negative and varies less."]
    if ess is not None:
        notes.append(f"Effective sample size (Σr)²/(nΣr²): {percent(ess)} of n tokens.")
    return TextTable(("divergence between policies", "k1", "k3"), rows, notes=notes)


def _losses(setting: Json) -> TextTable:
    facts, parts = setting["facts"], {"policy_loss": "policy"}
    if "kl_loss" in facts:
        parts |= {"kl_loss": "KL"}
        parts |= {"total_loss": "total"} if setting["options"]["kl_loss_coef"] else {}
    key = next((key for key in ("step", "batch") if key in facts["policy_loss"]), None)
    labels, notes = facts["policy_loss"][key]["label"] if key else [], [*loss_notes(setting)]
    columns = {name: [*facts[x][key]["mean"]] if key else [] for x, name in parts.items()}
    if len(labels) > MOST_ROWS:
        trends = [Trend(f"{name} loss", values) for name, values in columns.items()]
        return replace(trend_table("batch", labels, trends), notes=notes)
    if len(labels) != 1:
        labels = [*labels, "mean" if key else "all"]
        columns = {n: [*columns[n], of_all(facts, x)] for x, n in parts.items()}
    rows = [*zip(map(str, labels), *map(aligned, columns.values()), strict=True)]
    return TextTable(("loss by batch", *columns), rows, notes=notes)


def loss_notes(setting: Json) -> Iterator[str]:
    """Yield how token losses are aggregated, and what the KL loss is."""
    options, how = setting["options"], setting["aggregation"]
    yield f"Aggregation {how}: {ABOUT_AGGREGATIONS[how]}."
    if "kl_loss" not in setting["facts"]:
        return
    estimator, coefficient = options["kl_loss_estimator"], number(options["kl_loss_coef"])
    yield f"KL from the reference: estimator {estimator}, coefficient {coefficient}."
    if clamped := of_all(setting["facts"], "kl_clamped", "total"):
        bound = number(KlClamp.of(options["kl_loss_clamp"]).bound)
        yield f"KL was clamped to ±{bound} nats at {counted(clamped, 'token')}."


def _parts(facts: Json, key: str) -> TextTable:
    labels = facts["ratio"][key]["label"]
    trends = [
        Trend(heading, facts[name][key][statistic], share=share)
        for heading, name, statistic, share in (
            ("low", "clipped_low", "mean", True),
            ("high", "clipped_high", "mean", True),
            ("zero grad", "no_gradient", "mean", True),
            ("ratio", "ratio", "mean", False),
            ("KL k3", "policy_k3", "mean", False),
            ("ESS", "ratio_ess", "value", True),
        )
    ]
    if key == "step" and len(labels) > MOST_ROWS:
        return trend_table(key, labels, [trend for trend in trends if len({*trend.values}) > 1])
    counts = "tokens", facts["ratio"][key]["count"]
    return slice_table(f"by {key}", labels, counts, trends)


def _run_lines(summary: Json) -> Iterator[str]:
    """Yield the columns that were read, and the times."""
    yield f"columns: {role_columns(summary['roles'])}"
    yield from run_times(summary)


# ---- a sweep ----


def setting_name(setting: Json) -> str:
    """Return the swept options of a setting."""
    return ", ".join(f"{name} {_value(value)}" for name, value in setting["swept"].items())


def sweep_table(summary: Json) -> TextTable:
    """Return the table of settings."""
    settings = summary["settings"]
    columns, names = _columns(settings), [*settings[0]["swept"]]
    swept = [map(_value, setting["swept"].values()) for setting in settings]
    rows = [
        (*values, *row)
        for values, row in zip(swept, zip(*columns.values(), strict=True), strict=True)
    ]
    text = range(len(names))
    return TextTable((*names, *columns), rows, notes=[*_notes(settings)], text=text)


def _columns(settings: Sequence[Json]) -> dict[str, list[str]]:
    """Return the columns of numbers by heading."""

    def column(name: str, key: str = "mean") -> list[Any]:
        return [of_all(setting["facts"], name, key) for setting in settings]

    columns = {"zero grad": [*map(percent, column("no_gradient"))]}
    for state in _STATES:
        if state in ("clipped_low", "clipped_high") or any(column(state, "total")):
            columns[state.removeprefix("clipped_")] = [*map(percent, column(state))]
    columns["ESS"] = [*map(percent, column("gradient_ess", "value"))]
    columns["cosine"] = aligned(column("gradient_cosine", "value"))
    return columns | {"mean loss": aligned(column("total_loss"))}


def _notes(settings: Sequence[Json]) -> Iterator[str]:
    """Yield what the columns are."""
    yield "low, high: tokens clipped or masked below or above a bound."
    yield "zero grad: tokens with zero gradient. g: gradient ∂L/∂log π of a policy token."
    yield "ESS: effective sample size of |g|, (Σ|g|)²/(nΣg²) of the n policy tokens."
    yield f"cosine: between g and that of {setting_name(settings[0])}."


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
