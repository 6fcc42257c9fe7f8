"""Summaries of `rlpost advantages`: those of earlier trees as the facts of this one.

Earlier ones had an entry for each stage, again in each row of `steps` and `domains`. What was the
same number twice goes: rates of masks beside their counts, populations in words, shares of all
groups where those of groups of several responses are (equal rewards), sizes of groups but their
extremes, and the bounds of clips, which the recipe has.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
NUMBERS = ("mean", "std", "min", "max")
SPREADS = (
    *("policy_tokens", "reward", "process_reward", "response_level_reward", "advantage", "return"),
    *("sample_weight", "kl"),
)
CLIPS = {
    "reward_clip": "reward_clipped",
    "token_reward_clip": "token_reward_clipped",
    "advantage_clip": "advantage_clipped",
}
MASKS = {  # have the names of their options
    "max_len": "longer",
    "error_max_len": "long_errors",
    "zero_variance": "equal_rewards",
    "single_response": "single",
}
SIGNS = ("positive", "negative", "zero")
LEFT_OUT = ("nonfinite", "sample_mask", "superseded", "failure")


def comparable(data: Any) -> Any:
    """Return plain data in which each summary has the same shape, whatever tree wrote it."""
    if isinstance(data, list):
        return [comparable(part) for part in data]
    if not isinstance(data, dict):
        return data
    if {"signal", "masked", "advantage"} <= data.keys():
        return _of_earlier(data)
    if {"facts", "computes", "verdict", "kl"} <= data.keys():
        data = _of_this(data)
    # The estimator of KL is k1 unless one is set; None says that nothing asks for KL.
    name = "default" if data.get("field") == "kl_estimator" else "kl_estimator"
    data = {**data, name: "k1"} if data.get(name, "") is None else data
    # Numerics say since then what a missing log-prob of the engine is, and which rewards are equal.
    data = {key: value for key, value in data.items() if (key, value) != ("is_missing", "error")}
    data = {**data, "constant": "zero"} if data.get("constant") == "identical" else data
    return {key: comparable(value) for key, value in data.items()}


def _of_this(summary: Json) -> Json:
    """Return a summary with numbers as precise as those of earlier trees."""
    summary = {**summary}
    facts = {
        name: {
            by: {key: _rounded(x) if key in ("std", "value") else x for key, x in part.items()}
            for by, part in entry.items()
            if by != "of"
        }
        for name, entry in summary["facts"].items()
    }
    levels = sorted(finding["level"] for finding in summary["findings"])
    del summary["schema_version"]
    if summary["kl"] is None:
        del summary["kl"]
    return {**summary, "facts": facts, "findings": levels, "verdict": summary["verdict"]["level"]}


def _rounded(value: Any) -> Any:
    """Return a deviation, or what is made of several, to 11 digits.

    Sums of squares had no small part, which rounding takes.
    """
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return value if value is None else float(f"{value:.10e}")


def _of_earlier(old: Json) -> Json:
    """Return the facts of an earlier summary."""
    taken = {*SPREADS, *CLIPS, "masked", "signal", "pass_rate", "critic", "components", "groups",
             "top_entropy", "correction", "truncation", "steps", "domains", "rollouts", "errors",
             "warnings", "schema_version"}  # fmt: skip
    new = {key: value for key, value in old.items() if key not in taken}
    groups, signal = old.get("groups"), old["signal"]
    of_groups = signal.get("groups")
    new["rollouts"] = old.get("rollouts", {}).get("count")
    new["groups"] = groups and groups["count"]
    new["groups_with_signal"] = of_groups and of_groups["with_signal"]
    new["group_by"] = groups and groups.get("by", [])
    new["process_rewards"] = old.get("process_reward", {}).get("added_per")
    if kl := old.get("kl"):
        new["kl"] = {key: value for key, value in kl.items() if key not in NUMBERS}
    if "truncation" in old:
        new["truncation"] = {x: old["truncation"][x] for x in ("column", "unknown")}
    new["profiles"] = {"advantage": signal["histogram"]}
    new["verdict"] = "error" if signal["no_signal"] else "ok"
    levels = ["error"] * len(old["errors"]) + ["warning"] * len(old["warnings"])
    new["findings"] = sorted(levels)
    facts: Json = {name: {"all": entry} for name, entry in _facts(old).items()}
    if groups and groups["size"]:
        facts["group_size"] = {"all": {x: float(groups["size"][x]) for x in ("min", "max")}}
        facts["single"] = {"all": {"total": groups["single"]}}
    if "truncation" in old:
        facts["truncated"] = {"all": {"total": old["truncation"]["responses"]}}
    for table, by in (("steps", "step"), ("domains", "domain")):
        rows = [_facts(row) for row in old[table]]
        for name in facts if rows else ():
            if name in rows[0] and name not in ("single", "group_size", "truncated"):
                keys = rows[0][name]
                lists = {key: [row[name][key] for row in rows] for key in keys}
                facts[name][by] = {"label": [row[by] for row in old[table]], **lists}
    new["facts"] = facts
    return new


def _share(count: int, total: int) -> Json:
    return {"count": count, "total": total, "mean": total / count if count else None}


def _facts(row: Json) -> dict[str, Json]:
    """Return the measures of an earlier summary, or of a row of its steps or domains."""
    facts: dict[str, Json] = {
        name: {key: _rounded(row[name][key]) if key == "std" else row[name][key]
               for key in NUMBERS}
        for name in SPREADS
        if name in row and not (name == "kl" and row.get("kl", {}).get("measured") is False)
    }  # fmt: skip
    rows, masked, tokens = row["responses"], row["masked"], row["signal"]["tokens"]
    facts["kept"] = _share(rows, rows - masked["all"]["responses"])
    for mask, entry in masked.items():
        name = MASKS.get(mask, mask)
        if name in LEFT_OUT:
            facts[f"left_out:{name}"] = _share(rows, entry["responses"])
        elif name != "all":
            facts[f"dropped:{name}"] = _share(rows, entry["responses"])
            facts[f"newly_dropped:{name}"] = _share(rows, entry["new"])
    for sign in SIGNS:
        facts[f"advantage_{sign}"] = _share(tokens["count"], tokens[sign]["tokens"])
        if row.get("tokens") is not None:
            facts[f"length_{sign}"] = {"mean": tokens[sign]["mean_length"]}
    facts |= _single_numbers(row)
    for name, entry in row.get("components", {}).items():
        numbers = {key: _rounded(entry[key]) if key == "std" else entry[key] for key in NUMBERS}
        facts[f"component:{name}"] = {"count": entry["scored"], **numbers}
        facts[f"advantage_share:{name}"] = {"value": _rounded(entry["advantage_share"])}
        facts[f"reward_correlation:{name}"] = {"value": _rounded(entry["reward_correlation"])}
    return facts | _corrections(row.get("correction"))


def _single_numbers(row: Json) -> dict[str, Json]:
    """Return the measures of groups, clips and a critic."""
    facts: dict[str, Json] = {}
    if groups := row["signal"].get("groups"):
        facts |= {
            measure: {"total": groups[name]}
            for measure, name in (
                ("with_signal", "with_signal"), ("equal_rewards", "equal_rewards"),
                ("all_pass", "all_pass"),
            )
            if groups[name] is not None
        }  # fmt: skip
    if "pass_rate" in row:
        facts["passed"] = {"mean": row["pass_rate"]}
    if row.get("critic"):
        facts["explained_variance"] = {"value": _rounded(row["critic"]["explained_variance"])}
    for name, measure in CLIPS.items():
        if row.get(name):
            facts[measure] = {"total": row[name]["count"], "mean": row[name]["fraction"]}
    if row.get("top_entropy"):
        facts["below_top_entropy"] = {"total": row["top_entropy"]["masked"]}
    return facts


def _corrections(entry: Json | None) -> dict[str, Json]:
    """Return the measures of an off-policy correction."""
    if not entry:
        return {}
    tokens, responses, facts = entry["tokens"], entry["responses"], dict[str, Json]()
    rates = {"is_truncated": entry["truncated"], "is_masked": entry["masked"]}
    rates["rejected"] = entry["rejected"]
    rates |= {f"rejected:{part['filter']}": part for part in entry["filters"]}
    for name, part in rates.items():
        if part:
            kind, colon, which = name.partition(":")
            facts[name] = _share(tokens, part["tokens"])
            facts[f"{kind}_responses{colon}{which}"] = _share(responses, part["responses"])
    if entry["kl"]:
        facts |= {f"engine_{name}": {"mean": entry["kl"][name]} for name in ("k1", "k3")}
        facts["engine_chi2"] = {"mean": entry["chi_square"]["token"]}
        facts["engine_chi2_responses"] = {"mean": entry["chi_square"]["sequence"]}
        facts["confident_disagreement"] = {"total": entry["confident_disagreement"]}
        facts["identical_log_probs"] = {"total": entry["identical"]}
    if "weight" in entry:
        numbers = {key: _rounded(x) if key == "std" else x for key, x in entry["weight"].items()}
        facts |= {"is_weight": numbers, "weight_ess": {"value": _rounded(entry["ess"])}}
    return facts


def by_measure(data: Any) -> Any:
    """Return JSON whose rows of `facts` are by measure and key, as those of Python."""
    if isinstance(data, list):
        return [by_measure(part) for part in data]
    if not isinstance(data, dict):
        return data
    data = {key: by_measure(part) for key, part in data.items()}
    rows = data.get("facts")
    if isinstance(rows, list) and all("measure" in row for row in rows):
        data["facts"] = {}
        for row in rows:
            name, by, of = (row.pop(key) for key in ("measure", "by", "of"))
            data["facts"].setdefault(name, {"of": of})[by] = row
    return data
