"""The JSON of `inspect` and `report` of BASE and of now, in one layout: what both have.

BASE had a tree for each topic, in which steps and domains were lists. What went, and why:

- `token_facts.columns.*.quantiles`: of means of responses, which no page had
- `token_facts.shifts`: differences are of another sample of neighbours; the lags are compared
- `mismatch.by_position`: the buckets are those of critic and entropy
- `advantages.histogram`: the bins are those of the summary of `advantages`
- `critic.responses`, `entropy.responses`: populations are of tokens
- `steps.tokens`, `domains.tokens`: of all rows, also those that do not count
- `groups.all_pass`, `groups.all_fail`, `groups.size.median`: no page has them; the others are
  measures (`group_size`, `single`, `equal_rewards`, `all_pass`)
- `groups.pass_rate`: `passed` is the same for groups of one size
- `critic.losses`, `critic.calibration`, `critic.lambdas`, `entropy.top_*`: no page has them
- `failures.baselines`, `token_facts.duplicates`: what read them went
- `token_facts.edges`, `token_facts.identical`: two checks count them
- `failures.of`: rollouts count if `rollouts` is a number
- `advantages.of`, `failures.by_step` beyond the worst five: `facts` has them
"""

from __future__ import annotations

import math
from typing import Any

Json = dict[str, Any]
SPREAD = ("count", "mean", "std", "min", "max")
SAME = (
    *("inputs", "responses", "rollouts", "tokens", "input", "roles", "masks", "left_out", "where"),
    "findings",
)


def in_one_layout(data: Any) -> Any:
    """Return what both versions of an inspection have; other data as it is."""
    if not isinstance(data, dict) or not {"token_facts", "masks"} <= data.keys():
        return data
    return _of_table(data) if "facts" in data else _of_tree(data)


def _of_tree(old: Json) -> Json:
    """Return the part of the JSON of BASE that is left."""
    kept = {name: old[name] for name in SAME}
    if groups := old["groups"]:
        gone = ("all_pass", "all_fail", "size", "of", "pass_rate")
        size = groups["size"] or {}
        groups = {x: y for x, y in groups.items() if x not in gone}
        groups["size"] = [x and float(x) for x in (size.get("min"), size.get("max"))]
    kept["prompt_groups"] = groups
    for name in ("rewards", "lengths", "truncated"):
        kept[name] = old[name]
    for key in ("steps", "domains"):
        kept[key] = [{x: y for x, y in one.items() if x != "tokens"} for one in old[key]]
    if tokens := old["token_facts"]:
        gone = ("quantiles", "quantiles_of")
        kept["token_facts"] = {
            **{
                name: x
                for name, x in tokens.items()
                if name not in ("duplicates", "edges", "identical")
            },
            "columns": {
                role: {x: y for x, y in one.items() if x not in gone}
                for role, one in tokens["columns"].items()
            },
            "shifts": [(*one["columns"], one["lag"]) for one in tokens["shifts"]],
        }
    if gap := old["mismatch"]:
        gone = ("by_position", "corrections", "ratio_edges", "ratios", "unexplained")
        kept["mismatch"] = {x: y for x, y in gap.items() if x not in gone}
    if credit := old["advantages"]:
        kept["advantages"] = {name: credit[name] for name in ("column", "nonfinite")}
        parts = [credit["whole"], *credit["steps"]]
        kept["advantages"]["parts"] = [
            {x: y for x, y in part.items() if x != "label"} for part in parts
        ]
    if failures := old["failures"]:
        names = ("column", "count", "failed", "reasons")
        kept["failures"] = {name: failures[name] for name in names}
    gone = ("responses", "losses", "calibration", "lambdas", "groups")
    gone += ("top_share", "top_mean", "top_least")
    for name in ("critic", "entropy"):
        if old[name]:
            kept[name] = {x: y for x, y in old[name].items() if x not in gone}
    return kept


def _of_table(new: Json) -> Json:
    """Return the same part, in the layout of BASE."""
    facts = new["facts"]

    def whole(name: str, part: str = "mean") -> Any:
        return facts[name]["all"][part] if name in facts else None

    def spread(name: str) -> Json:
        return {part: whole(name, part) for part in SPREAD}

    kept = {name: new[name] for name in SAME}
    kept["prompt_groups"] = _groups(new["prompt_groups"], whole)
    for name, measure in (("rewards", "reward"), ("lengths", "policy_tokens")):
        kept[name] = new[name] and {**new[name], "spread": spread(measure)}
    column = new["roles"].get("truncated", {}).get("column")
    cut = {"column": column, "responses": whole("truncated", "total"), "share": whole("truncated")}
    kept["truncated"] = cut if "truncated" in facts else None
    kept["steps"], kept["domains"] = (_slices(facts, key) for key in ("step", "domain"))
    if tokens := new["token_facts"]:
        kept["token_facts"] = {
            **tokens,
            "kl": spread("kl") if whole("kl", "count") else None,
            "columns": {
                role: {**one, "mean": whole(role)} for role, one in tokens["columns"].items()
            },
            "shifts": [(*one["columns"], one["lag"]) for one in tokens["shifts"]],
        }
    if gap := new["mismatch"]:
        kept["mismatch"] = {
            **gap,
            "tokens": whole("engine_gap", "count"), "mean_abs": whole("engine_gap"),
            "max_abs": whole("engine_gap", "max"), "clamped": whole("engine_clamped", "total"),
            "k1": whole("engine_k1"), "k3": whole("engine_k3"),
            "chi_square": whole("engine_chi2"), "ess": whole("engine_ess", "value"),
            "confident_disagreement": whole("confident_disagreement", "total"),
            "identical": whole("identical_log_probs", "total"),
        }  # fmt: skip
    if credit := new["advantages"]:
        kept["advantages"] = {name: credit[name] for name in ("column", "nonfinite")}
        rows = [("all", None)]
        steps = facts["advantage"].get("step", {"label": []})["label"]
        rows += [("step", at) for at in range(len(steps))] if len(steps) > 1 else []
        kept["advantages"]["parts"] = [
            {
                **{part: _at(facts, "advantage", by, part, at) for part in SPREAD},
                "zero_share": _at(facts, "advantage_zero", by, "mean", at),
                "positive_share": _at(facts, "advantage_positive", by, "mean", at),
            }
            for by, at in rows
        ]
    if failures := new["failures"]:
        kept["failures"] = {
            **{name: failures[name] for name in ("column", "reasons")},
            "count": whole("failed", "count"), "failed": whole("failed", "total"),
        }  # fmt: skip
    if "position" in facts.get("value", ()):
        kept["critic"] = _critic(facts, whole)
    if entropy := new["entropy"]:
        kept["entropy"] = _entropy(entropy, facts, whole)
    return kept


def _at(facts: Json, name: str, by: str, part: str, at: int | None) -> Any:
    numbers = facts[name][by][part] if name in facts else None
    return numbers if at is None or numbers is None else numbers[at]


def _slices(facts: Json, key: str) -> list[Json]:
    if key not in facts["counted"]:
        return []
    shares = {
        "truncated": "truncated", "pass_rate": "passed", "no_signal": "equal_rewards", "kl": "kl",
        "mismatch": "engine_k3",
    }  # fmt: skip
    none = dict.fromkeys(SPREAD[1:])
    slices = []
    for at, label in enumerate(facts["counted"][key]["label"]):
        one: Json = {"label": label, "responses": facts["counted"][key]["count"][at]}
        for name, measure in (("reward", "reward"), ("length", "policy_tokens")):
            numbers = {part: _at(facts, measure, key, part, at) for part in SPREAD}
            one[name] = numbers if measure in facts else {"count": 0, **none}
        slices.append(one | {x: _at(facts, y, key, "mean", at) for x, y in shares.items()})
    return slices


def _groups(groups: Json | None, whole: Any) -> Json | None:
    equal, passing = (whole(x, "total") or 0 for x in ("equal_rewards", "all_pass"))
    return groups and {
        **groups, "count": whole("group_size", "count"),
        "single": whole("single", "total"), "no_signal": equal, "equal_all_pass": passing,
        "equal_all_fail": equal - passing,
        "size": [whole("group_size", "min"), whole("group_size", "max")],
    }  # fmt: skip


def _critic(facts: Json, whole: Any) -> Json:
    places, means = facts["value"]["position"], ("value", "reward_to_go", "squared_value_error")
    columns = (facts[name]["position"]["mean"] for name in means)
    rows: list[Json] = [
        {"tokens": count, "value": value, "returns": returns, "rmse": math.sqrt(square)}
        for count, value, returns, square in zip(places["count"], *columns, strict=True)
    ]
    first = {**rows[0]}
    for at, row in enumerate(rows[:-1]):
        row |= {"first": 4**at // 4, "end": 4**at}
    steps = facts["value"].get("step", {"label": []})["label"]
    return {
        "tokens": whole("value", "count"), "value": whole("value"),
        "returns": whole("reward_to_go"),
        "explained_variance": whole("critic_explained", "value"),
        "rmse": math.sqrt(whole("squared_value_error")),
        "first": first, "last": rows[-1], "by_position": rows[:-1],
        "steps": [
            {
                "label": label, "tokens": _at(facts, "value", "step", "count", at),
                "explained_variance": _at(facts, "critic_explained", "step", "value", at),
                "rmse": math.sqrt(_at(facts, "squared_value_error", "step", "mean", at)),
            }
            for at, label in enumerate(steps if len(steps) > 1 else [])
        ],
    }  # fmt: skip


def _entropy(entropy: Json, facts: Json, whole: Any) -> Json:
    def rows(numbers: Json | None, mean: str) -> list[Json]:
        columns = [numbers[name] for name in ("label", "count", mean)] if numbers else []
        return [
            {"label": label, "tokens": n, "mean": x}
            for label, n, x in zip(*columns, strict=True)
            if n
        ]

    places = {name: values[:-1] for name, values in facts["entropy"]["position"].items()}
    covariance = facts.get("covariance", {"all": None})
    parts = [(None, covariance["all"]["count"], whole("covariance", "value"))] if (
        covariance["all"]
    ) else []  # fmt: skip
    if "step" in covariance and len(covariance["step"]["label"]) > 1:
        columns = (covariance["step"][name] for name in ("label", "count", "value"))
        parts += [row for row in zip(*columns, strict=True) if row[1]]
    return {
        **{name: entropy[name] for name in ("column", "sampled")},
        "tokens": whole("entropy", "count"), "mean": whole("entropy"),
        "by_position": rows(places, "mean"),
        "steps": rows(facts["entropy"].get("step"), "mean"),
        "domains": rows(facts["entropy"].get("domain"), "mean"),
        "advantages": entropy["covariance_of"],
        "log_probs": entropy["log_probs"] if parts else None,
        "covariance": [{"label": x, "tokens": n, "value": value} for x, n, value in parts],
    }  # fmt: skip
