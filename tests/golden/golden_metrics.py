"""Numbers of the frameworks' logs that rlpost's summary has, too."""

from golden_corrections import METRICS as CORRECTION_METRICS
from golden_runs import has_observations, width
from summaries import numbers, parts


def metrics_of(entry, one, table, summary, state) -> dict[str, tuple[float, float]]:
    """{name: (expected, ours)} for every metric of an entry that can be told from a summary."""
    metrics = entry["metrics"]
    records = metrics.get("per_step") or metrics.get("per_step_domain") or [metrics]
    steps = parts(summary, "step")
    by_step = "per_step" in metrics and len(records) == len(steps)
    facts = steps if by_step else [numbers(summary)]
    counts = [record.get("actor/samples_total", 1.0) for record in records]
    found = {}
    for name in dict.fromkeys(name for record in records for name in record):
        values = [record.get(name) for record in records]
        if name not in METRICS or not all(isinstance(value, int | float) for value in values):
            continue
        ours = [METRICS[name](fact, table, one.recipe) for fact in facts]
        if None in ours:
            continue
        if not by_step:  # the mean over the framework's calls is that over the whole input
            weighted = zip(values, counts, strict=True)
            values = [sum(value * count for value, count in weighted) / sum(counts)]
        for place, pair in enumerate(zip(values, ours, strict=True)):
            found[f"{name}[{place}]"] = pair
    return found | _coefficients(records, summary) | _running(records, state)


def _coefficients(records, summary) -> dict[str, tuple[float, float]]:
    """The KL coefficient of each batch, before its own update."""
    name = next((name for name in COEFFICIENTS if name in records[0]), None)
    if name is None:
        return {}
    ours = summary["kl"]["coefficients"]
    if not isinstance(ours, list):
        return {f"{name}[{place}]": (record[name], ours) for place, record in enumerate(records)}
    used = [batch["coefficient"] for batch in ours]
    pairs = zip(records, used, strict=True)
    found = {f"{name}[{at}]": (record[name], mine) for at, (record, mine) in enumerate(pairs)}
    after = "kl_coef_after_update"
    if after in records[0]:
        pairs = zip(records, used[1:], strict=False)
        found |= {
            f"{after}[{at}]": (record[after], mine) for at, (record, mine) in enumerate(pairs)
        }
    return found


def _running(records, state) -> dict[str, tuple[float, float]]:
    """Running moments after the last batch."""
    if "running_mean" not in records[-1] or len(state) != 1:
        return {}
    (moments,) = state.values()
    count = moments["count"]
    ours = {
        "running_mean": moments["mean"],
        "running_std": (moments["variance"] * count / (count - 1)) ** 0.5,
        "running_count": count,
    }
    return {name: (records[-1][name], value) for name, value in ours.items()}


def _drops(fact):
    """Whether responses are dropped: ROLL counts their clipped rewards, and rlpost does not."""
    return fact["kept"]["total"] < fact["kept"]["count"]


def _clip(name):
    def fraction(fact, _table, _recipe):
        if _drops(fact):
            return None
        return (fact[name]["mean"] or 0.0) if name in fact else 0.0

    return fraction


def _padded_clip(name):
    """ROLL's share of all cells: a prompt of two tokens, one of them no target, and padding.

    It counts rewards clipped on observations, too, which rlpost never places.
    """

    def fraction(fact, table, _recipe):
        if name == "token_reward_clipped" and (has_observations(table) or _drops(fact)):
            return None
        count = fact[name]["total"] if name in fact else 0
        return count / (fact["kept"]["count"] * (width(table) + 1))

    return fraction


def _passed(name):
    def ratio(fact, _table, _recipe):
        return 1 - fact[f"dropped:{name}"]["mean"] if f"dropped:{name}" in fact else 1.0

    return ratio


def _constant_groups(fact, _table, recipe):
    """TRL counts responses, by the deviation that it divides by."""
    size = fact["group_size"]
    by_group = recipe.norm_std != "batch" and size["min"] == size["max"]
    return fact["equal_rewards"]["total"] / size["count"] if by_group else None


COEFFICIENTS = ("critic/kl_coef", "actor/reward_kl_penalty_coeff")
METRICS = {
    **CORRECTION_METRICS,
    "critic/reward_clip_frac": _clip("reward_clipped"),
    "critic/token_reward_clip_frac": _padded_clip("token_reward_clipped"),
    "critic/advantage_clip_frac": _padded_clip("advantage_clipped"),
    "critic/kl": lambda fact, *_: fact["kl"]["mean"],
    "actor/reward_kl_penalty": lambda fact, *_: fact["kl"]["mean"],
    "actor/max_len_mask_ratio": _passed("longer"),
    "actor/difficulty_mask_ratio": _passed("difficulty"),
    "actor/error_len_mask_ratio": _passed("long_errors"),
    "actor/final_mask_ratio": lambda fact, *_: fact["kept"]["mean"],
    "frac_reward_zero_std": _constant_groups,
}
