"""The sentences of `rlpost loss`: what was asked for, and what its numbers mean for each loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.loss_catalogue import ABOUT_AGGREGATIONS, word
from rlpost.render import number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Json = dict[str, Any]
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
    return f"A is {what}. Without gradient a token teaches nothing.\n{_clipped(one)}"


def _clipped(one: Json) -> str:
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
