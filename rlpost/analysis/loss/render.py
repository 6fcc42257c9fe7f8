"""The summary of `rlpost loss` as text: on a terminal, in a pipe, as Markdown or JSON."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpost.analysis.loss.log import log_tables
from rlpost.analysis.loss.render_sweep import setting_name, sweep_table
from rlpost.display.console import console
from rlpost.display.page import Notice, Page, show_page
from rlpost.display.tables import MOST_ROWS, TextTable, elided, show_json
from rlpost.display.text import aligned, counted, number, percent, role_columns, run_times
from rlpost.display.trends import Trend, trend_table
from rlpost.recipe.base import Offsets
from rlpost.recipe.loss import ABOUT_AGGREGATIONS, KlClamp, behaviour_role, is_own, word
from rlpost.recipe.recipe import PROXIMAL
from rlpost.render.summary import unit_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console


Json = dict[str, Any]
MASKING = ("dppo", "ipo", "ref_kl", "dppo_tv", "dppo_kl")
TRUNCATING = ("dppo_tv", "dppo_kl")
SELECTING = {"clip_cov": "selected: loss 0", "kl_cov": "selected: penalty on |log r|"}
_CLIPS_NOTHING = {
    "pg": "This loss uses no ratio and clips nothing.",
    "gpg": "This loss uses no ratio and clips nothing.",
    "kimi15": "This loss clips nothing; it penalises the squared log ratio.",
    "dro": "This loss clips nothing; it penalises the squared log ratio.",
    "kl_cov": "This loss clips nothing; it penalises |log r| of the selected tokens.",
    "sapo": "This loss clips nothing; its gate reduces the gradient as the ratio leaves 1.",
    "real": "This loss clips nothing; the gradient of a response falls as its score is right.",
    "vespo": "This loss clips nothing; its weight falls as the ratio of the response leaves 1.",
}
_OWN_STATES = {
    "low": "clipped, low",
    "high": "clipped, high",
    "dual": "clipped by the dual clip",
    "selected": "selected",
}
_CLIP_NOTES = {
    "oreal": "A clipped token has no policy gradient; if A > 0, it keeps that of -log π.",
    "mask_pg": "A masked token has zero gradient; a clipped one keeps a bounded weight.",
    "rollout_is": "A clipped token has zero gradient, for any sign of A.",
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
    configs, tokens = summary["settings"], summary["tokens"]["policy"]
    of = f"of {counted(tokens, 'policy token')}"
    if len(configs) == 1:
        setting = configs[0]
        zero = f"{percent(setting['no_gradient']['fraction'])} have no gradient"
        name = setting["options"]["loss"]
        if name in _CLIPS_NOTHING:
            yield f"{name} clips nothing; {zero}, {of}"
        else:
            how = "masked" if name in MASKING else "clipped"
            yield f"{percent(setting['clip']['any']['fraction'])} {of} are {how}; {zero}"
        return
    clipped = [(setting["clip"]["any"]["fraction"], setting_name(setting)) for setting in configs]
    flat = [(setting["no_gradient"]["fraction"], setting_name(setting)) for setting in configs]
    for what, shares in (("clipped or masked", clipped), ("without gradient", flat)):
        low, high = min(shares), max(shares)
        span = f"{percent(low[0])} in all settings"
        if low[0] != high[0]:
            span = f"{percent(low[0])} ({low[1]}) to {percent(high[0])} ({high[1]})"
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
    values = {x: y for x, y in {**fields, **_alone(options)}.items() if y != "never"}
    texts = [f"{_SYMBOLS.get(name, name)} = {word(value)}" for name, value in values.items()]
    if options.get("ratio_clamp", "never") != "never":
        texts.append(f"|log r| ≤ {word(options['ratio_clamp'])}")
    return ", ".join(texts)


def _alone(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of the loss alone."""
    alone: Mapping[str, Any] = options.get("loss_options", {})
    return alone


def _mask_bounds(options: Mapping[str, Any]) -> Offsets:
    """Return the bounds of a masking loss for falling and for rising probabilities."""
    alone = _alone(options)
    return Offsets.of(alone.get("kl_mask", alone.get("prob_mask")))


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
    branches = branch_labels(setting)
    rows: list[tuple[str, ...]]
    rows = [(label, *_clipped(clip[side])) for side, label in branches.items()]
    for name, label in reason_labels(setting).items():
        rows.append(_share(label, zero[name], zero[name] / tokens if tokens else 0.0))
    if sum(zero[name] > 0 for name in ("zero_advantage", "clipped", "other")) != 1:
        rows.append(_share("zero gradient, total", zero["tokens"], zero["fraction"]))
    responses = _share("responses with zero gradient", zero["responses"], zero["response_fraction"])
    headings = ("token outcomes", "count", "share", "of A > 0", "of A < 0")
    columns = len(headings) if branches else 3
    return TextTable(
        headings[:columns],
        [row[:columns] for row in (*rows, responses)],
        notes=list(outcome_notes(setting)),
    )


def _share(label: str, count: int, share: float) -> tuple[str, str, str, str, str]:
    return label, f"{count:,}", percent(share), "", ""


def _clipped(branch: Json) -> tuple[str, str, str, str]:
    positive, negative = (
        percent(sign["fraction"]) if sign["tokens"] else "–"
        for sign in (branch["positive"], branch["negative"])
    )
    return f"{branch['tokens']:,}", percent(branch["fraction"]), positive, negative


def branch_labels(setting: Json) -> dict[str, str]:
    """Return the clip states that the loss has, each with the label of its row."""
    options, clip, bounds = setting["options"], setting["clip"], setting["bounds"]
    name = options["loss"]
    if is_own(name):
        return {side: text for side, text in _OWN_STATES.items() if clip[side]["tokens"]}
    if name in MASKING:
        by = "with KL >" if name == "dppo_kl" else "by >"
        low, high = _mask_bounds(options)
        labels = {"low": f"masked, π fell {by} {word(low)}"}
        if name != "ref_kl":
            labels["high"] = f"masked, π rose {by} {word(high)}"
        if name in TRUNCATING:
            labels["dual"] = f"weight truncated to {word(_alone(options)['weight_cap'])}"
        return labels
    signs = {"low": "<", "high": ">"}
    labels = {
        side: f"clipped, ratio {sign} {bounds[side]:.5g}"
        for side, sign in signs.items()
        if bounds[side] is not None
    }
    if name in SELECTING:
        labels["selected"] = SELECTING[name]
    return labels | (
        {"dual": "masked, ratio > c" if name == "mask_pg" else "clipped by the dual clip"}
        if clip["dual"]["tokens"]
        else {}
    )


def reason_labels(setting: Json) -> dict[str, str]:
    """Return the reasons for a zero gradient that the loss has or that occur, with their labels."""
    name, zero = setting["options"]["loss"], setting["no_gradient"]
    no_advantage = "π = π_ref" if name == "ref_kl" else "A = 0"
    labels = {"zero_advantage": f"zero gradient: {no_advantage}"}
    if zero["clipped"] or name in ("ppo", "gspo", "geo_mean", "clip_cov", "fipo", "oreal"):
        how = "masked" if name in MASKING else "clipped"
        labels["clipped"] = f"zero gradient: {how}{' or selected' * (name == 'clip_cov')}"
    return labels | ({"other": "zero gradient: other"} if zero["other"] else {})


def outcome_notes(setting: Json) -> Iterator[str]:
    """Yield what A is, and what clipping does to the gradient under this loss."""
    options, name = setting["options"], setting["options"]["loss"]
    if name == "ref_kl":
        yield "A: log π_ref - log π of the token, which this loss uses as its advantage."
    else:
        yield "A: advantage of the token. Zero gradient: the token does not update the policy."
    yield _clip_note(setting)
    if name in SELECTING:
        share = word(_alone(options)["share"])
        yield (
            f"Selected: {share} of the policy tokens of each batch, at least "
            "1, by their covariance of advantage and log-prob."
        )
    if _alone(options).get("mask_clipped") and setting["clip"]["any"]["tokens"]:
        yield "The other clipped tokens keep a gradient with a bounded weight."
    if name in ("ppo", "gspo", "fipo", "oreal") and setting["clip"]["dual"]["tokens"]:
        yield "The dual clip also stops the gradient if A < 0 and the ratio is above c."


def _clip_note(setting: Json) -> str:
    options, clip, clipped = setting["options"], setting["clip"], setting["no_gradient"]["clipped"]
    name = options["loss"]
    if name in _CLIPS_NOTHING:
        text = _CLIPS_NOTHING[name]
    elif is_own(name):
        text = "This loss clips no token."
        if clip["any"]["tokens"]:
            text = (
                "Clipped: zero gradient, but A is not 0; low if the ratio is below 1, else high; "
                "or as the function returns it."
            )
    elif not clip["any"]["tokens"]:
        moved = "probability changed by more than" if name in MASKING else "ratio is beyond"
        text = f"No {'binary KL is above' if name == 'dppo_kl' else moved} a bound."
    elif name in _CLIP_NOTES:
        text = _CLIP_NOTES[name]
    elif name in MASKING and _alone(options).get("square_coef"):
        text = "A masked token loses -A·r and keeps the gradient of κ(log r)²."
    elif name in MASKING:
        text = "A masked token has zero gradient."
    elif _alone(options).get("mask_clipped"):
        text = "A clipped token has zero gradient if its ratio moved in the direction of A."
    elif not clipped:
        text = "A clipped token keeps its gradient; only its weight is bounded."
    else:
        text = "A clipped token has zero gradient: its ratio moved past the bound along A."
    return text


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
    batches, notes = setting["batches"], list(loss_notes(setting))
    if len(batches) > MOST_ROWS:
        trends = [Trend(f"{name} loss", [b[part] for b in batches]) for part, name in parts.items()]
        table = trend_table("batch", [batch["batch"] for batch in batches], trends)
        return replace(table, notes=notes)
    labels = [str(batch["batch"]) for batch in batches]
    values = [[batch[part] for batch in batches] for part in parts]
    if len(batches) > 1:
        labels.append("mean")
        values = [
            [*losses, setting["loss"][part]] for losses, part in zip(values, parts, strict=True)
        ]
    rows = [*zip(labels, *map(aligned, values), strict=True)]
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
