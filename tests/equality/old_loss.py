"""The JSON of `rlpost loss` of schema 1 as that of schema 2, so that all numbers are compared."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
SIGNS = ("positive", "negative")
KEYS = {"step": "steps", "domain": "domains", "position": "positions"}
REASONS = ("zero_advantage", "clipped", "other")
SIDES = {
    "low": "clipped_low",
    "high": "clipped_high",
    "dual": "clipped_dual",
    "selected": "selected",
    "any": "clipped",
}
ADDED = {
    *("findings.check", "findings.level", "findings.columns", "findings.rows", "findings.option"),
    *("verdict.level", "verdict.text"),
    "seconds.summary",  # of a run with an output, too, now that no footer has the summary
    *(f"facts.{name}.of" for name in ("advantage", "ratio", "log_ratio", "policy_k3", "ratio_ess")),
    *(f"facts.engine_{name}.of" for name in ("k1", "k3")),
    *(f"facts.{name}.of" for name in ("without_tokens", "loss_ratio", "token_loss")),
    *(f"facts.{name}{end}.of" for name in SIDES.values() for end in ("", "_positive", "_negative")),
    *(f"facts.no_gradient{end}.of" for end in ("", *(f"_{x}" for x in (*REASONS, "responses")))),
    *(f"facts.{name}.of" for name in ("ratio_clamped", "kl_clamped")),
    *(f"facts.gradient_{name}.of" for name in ("norm", "ess", "cosine")),
    *(f"facts.{name}_loss.of" for name in ("policy", "kl", "total")),
    # how many tokens have a sign, of which schema 1 had the share that is clipped
    *(
        f"facts.{name}_{sign}.{key}.count"
        for name in SIDES.values()
        for sign in SIGNS
        for key in ("all", *KEYS)
    ),
    # what schema 1 had of the whole input alone, or not
    *(
        f"facts.{name}.{key}"
        for name in (
            "without_tokens", "advantage", "no_gradient_responses", "ratio_clamped", "kl_clamped",
        )
        for key in KEYS
    ),
    *(f"facts.log_ratio.{key}.{end}" for key in ("all", *KEYS) for end in ("min", "max")),
}  # fmt: skip
"""Keys of JSON that schema 2 added."""


def in_facts(data: Any) -> Any:
    """A summary of `rlpost loss` with facts; other data as it is."""
    if not isinstance(data, dict) or "advantages_from" not in data:
        return data
    if data["schema_version"] != 1:
        counts = ("rollouts", "groups", "groups_with_signal")  # null in old ones
        return _without_signs({name: x for name, x in data.items() if name not in counts})
    gone = ("left_out", "advantage", "ratio", "kl", "engine_kl", "ess", "settings", "warnings")
    kept = {name: x for name, x in data.items() if name not in gone}
    kept |= {"schema_version": 2}
    if "warnings" in data:
        findings = [{"text": text} for text in data["warnings"]]
        kept["findings"] = findings + data.get("findings", [])
    rows = {"all": data | {"tokens": data["tokens"]["policy"]}}
    settings, single = data["settings"], len(data["settings"]) == 1
    parts = _parts(settings[0]) if single else {}
    facts = {
        "without_tokens": {"all": _share(data["left_out"], data["responses"])},
        "advantage": {"all": {"count": rows["all"]["tokens"], **data["advantage"]}},
        **_of_input(rows | parts),
    }
    losses = [_of_loss(data, x, parts) for x in settings]
    if single:
        return {**kept, **losses[0], "facts": facts | losses[0]["facts"]}
    swept = [{"swept": x["swept"], **y} for x, y in zip(settings, losses, strict=True)]
    return {**kept, "facts": facts, "settings": swept}


def _without_signs(data: Json) -> Json:
    """Shares of tokens of a sign that no token has are 0 in schema 1, and null in schema 2."""
    facts = dict(data["facts"])
    for name, entry in data["facts"].items():
        if name.endswith(SIGNS):
            facts[name] = {key: _zeros(part) for key, part in entry.items()}
    return {**data, "facts": facts} | (
        {"settings": [_without_signs(x) for x in data["settings"]]} if "settings" in data else {}
    )


def _zeros(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    mean = part["mean"]
    return {**part, "mean": [x or 0.0 for x in mean] if isinstance(mean, list) else mean or 0.0}


def _share(total: int, count: int) -> Json:
    return {"count": count, "total": total, "mean": total / count if count else None}


def _parts(setting: Json) -> Json:
    """Rows by key, with their labels."""
    parts = {}
    for key, name in KEYS.items():
        rows = [dict(row) for row in setting.get(name, [])]
        for row in rows:
            if key == "position":
                ends = f"{row['from']} to {row['to']}"
                row["position"] = f"from {row['from']}" if row["to"] is None else ends
        if rows:
            parts[key] = rows
    return parts


def _by_key(rows: Json, entry: Any) -> Json:
    """The entries of a measure by key; `entry` makes that of a row."""
    facts = {}
    for key, part in rows.items():
        if key == "all":
            facts[key] = entry(part)
        else:
            entries = [entry(row) for row in part]
            columns = {name: [x[name] for x in entries] for name in entries[0]}
            facts[key] = {"label": [row[key] for row in part], **columns}
    return facts


def _of_input(rows: Json) -> Json:
    def ratio(row: Json) -> Json:
        names = [x for x in ("mean", "min", "max") if x in row["ratio"]]
        entry = {"count": row["tokens"], **{name: row["ratio"][name] for name in names}}
        return entry | ({"quantiles": row["ratio"]["quantiles"]} if "nonfinite" in row else {})

    def kl(name: str, kind: str, sign: int = 1) -> Any:
        def entry(row: Json) -> Json:
            x = row[name][kind]
            return {"count": row["tokens"], "mean": None if x is None else sign * x + 0.0}

        return entry

    facts = {
        "ratio": _by_key(rows, ratio),
        "log_ratio": _by_key(rows, kl("kl", "k1", -1)),
        "policy_k3": _by_key(rows, kl("kl", "k3")),
        "ratio_ess": _by_key(rows, lambda row: {"count": row["tokens"], "value": row["ess"]}),
    }
    if rows["all"]["engine_kl"] is not None:
        facts |= {f"engine_{x}": _by_key(rows, kl("engine_kl", x)) for x in ("k1", "k3")}
    return facts


def _of_loss(data: Json, setting: Json, parts: Json) -> Json:
    rows, tokens = {"all": setting, **parts}, setting["tokens"]
    facts: Json = {
        "token_loss": _by_key(rows, lambda x: {"count": x["tokens"], "mean": x["token_loss"]})
    }
    if setting["loss_ratio"] is not None:
        facts["loss_ratio"] = _by_key(rows, lambda x: {"count": x["tokens"], **x["loss_ratio"]})
    for side, name in SIDES.items():
        facts[name] = _by_key(rows, lambda x, y=side: _share(x["clip"][y]["tokens"], x["tokens"]))
        for sign in SIGNS:
            facts[f"{name}_{sign}"] = _by_key(rows, lambda x, y=side, z=sign: _of_sign(x, y, z))
    still = setting["no_gradient"]
    for end, name in (("", "tokens"), *((f"_{x}", x) for x in REASONS)):
        facts[f"no_gradient{end}"] = _by_key(
            rows, lambda x, y=name: _share(x["no_gradient"][y], x["tokens"])
        )
    count = data["responses"] - data["left_out"]
    facts["no_gradient_responses"] = {"all": _share(still["responses"], count)}
    facts["ratio_clamped"] = {"all": _share(setting["ratio_clamped"], tokens)}
    if setting["loss"]["kl"] is not None:
        facts["kl_clamped"] = {"all": _share(setting["kl_clamped"], tokens)}
    for name in ("norm", "ess", "cosine") if setting["gradient"] is not None else ():
        entry = {"count": tokens, "value": setting["gradient"][name]}
        facts[f"gradient_{name}"] = {"all": entry}
    kept = {name: setting[name] for name in ("options", "formula", "bounds", "aggregation")}
    return {**kept, "facts": facts | _of_batches(setting)}


def _of_batches(setting: Json) -> Json:
    batches, facts = setting["batches"], {}
    labels = [batch["batch"] for batch in batches]
    key = "batch" if any("/" in str(label) for label in labels) else "step"
    for name in ("policy", "kl", "total"):
        losses = [batch[name] for batch in batches]
        entry = {"all": {"count": len(losses), "mean": setting["loss"][name]}}
        if labels and labels != ["all"]:
            entry[key] = {"label": labels, "count": [1] * len(labels), "mean": losses}
        if name != "kl" or setting["loss"]["kl"] is not None:
            facts[f"{name}_loss"] = entry
    return facts


def _of_sign(row: Json, side: str, sign: str) -> Json:
    """The clipped tokens of a sign; schema 1 has their share, from which the count follows."""
    entry = row["clip"][side][sign]
    return {"total": entry["tokens"], "mean": entry["fraction"]}
