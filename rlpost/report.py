"""The summary of a run as plain data: what `--summary-json` prints and the file's metadata hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlpost.correction_summary import facts as correction_facts
from rlpost.correction_summary import warnings as correction_warnings
from rlpost.groups import group_statistics
from rlpost.kernels.segments import offsets_of

if TYPE_CHECKING:
    from rlpost.batch import Responses
    from rlpost.plan import Job
    from rlpost.shape import Shape
    from rlpost.summary import Tally, Totals

SCHEMA_VERSION = 1
Json = dict[str, Any]


def summarise(job: Job, responses: Responses, tally: Tally) -> Json:
    """The summary of the rows that a tally counted.

    Args:
        job: the recipe bound to its input.
        responses: the rows that the tally counted, and no others.
        tally: by step and domain.
    """
    shape = job.shape
    every = tally.over(torch.arange(tally.keys))
    groups = _groups(job, responses)
    edges = {name: every.count(name) for name in ("padded", "shifted")}
    summary: Json = {
        "schema_version": SCHEMA_VERSION,
        "estimator": shape.estimator.name,
        "roles": {
            role: {"column": job.columns.column(role), "found_by": job.columns.how[role]}
            for role in job.roles
        },
        **_facts(every, shape),
        "groups": groups,
        "steps": _tables(responses, tally, shape, "step"),
        "domains": _tables(responses, tally, shape, "domain"),
    }
    if shape.kl:
        summary["kl"]["coefficients"] = _coefficients(responses, shape)
    warnings = [*warnings_of(job, responses, summary, edges), *correction_warnings(summary)]
    return {**summary, "warnings": warnings}


def _facts(totals: Totals, shape: Shape) -> Json:
    """What is said of any set of rows: the whole, a step, a domain."""
    recipe = shape.recipe
    facts: Json = {
        "responses": totals.count("rows"),
        "tokens": {"all": totals.count("length"), "policy": totals.count("tokens")},
        "masked": _masked(totals),
        "reward": totals.statistic("reward"),
        "response_level_reward": totals.statistic("response_level_reward"),
        "reward_clip": _clip(totals, "reward_clipped", "valid", recipe.reward_clip),
        "token_reward_clip": _clip(
            totals, "token_reward_clipped", "valid_tokens", recipe.reward_clip
        ),
        "advantage": totals.statistic("advantage"),
        "return": totals.statistic("return"),
        "advantage_clip": _clip(
            totals, "advantage_clipped", "advantage.count", recipe.advantage_clip
        ),
    }
    if "sample_weight" in totals:
        facts["sample_weight"] = totals.statistic("sample_weight")
    if shape.kl:
        facts["kl"] = {**totals.statistic("kl"), "estimator": recipe.kl_estimator}
    if recipe.corrects:
        facts["correction"] = correction_facts(totals, recipe)
    return facts


def _masked(totals: Totals) -> Json:
    """How many responses each mask drops, and all masks together, of those there are."""
    rows = totals.count("rows")
    dropped = {
        name.removeprefix("mask:"): totals.count("valid") - totals.count(name)
        for name in totals.sums
        if name.startswith("mask:")
    }
    dropped["nonfinite"] = rows - totals.count("valid")
    dropped["all"] = rows - totals.count("kept")
    return {
        name: {"responses": count, "rate": count / rows if rows else 0.0}
        for name, count in dropped.items()
    }


def _clip(totals: Totals, clipped: str, of: str, bound: float | None) -> Json | None:
    if bound is None:
        return None
    count, base = totals.count(clipped), totals.count(of)
    return {"bound": bound, "count": count, "fraction": count / base if base else 0.0}


def _tables(responses: Responses, tally: Tally, shape: Shape, column: str) -> list[Json]:
    """The facts of each step or domain, where the input has that column and it varies."""
    labels = responses.labels[column]
    if labels == ["all"]:
        return []
    domains = responses.count("domain")
    cells = torch.tensor(responses.labels["cell"], dtype=torch.int64)
    codes = cells // domains if column == "step" else cells % domains
    found = []
    order = enumerate(labels) if column == "step" else sorted(enumerate(labels), key=_label)
    for code, label in order:
        totals = tally.over((codes == code).nonzero().squeeze(1))
        if totals.count("rows"):
            found.append({column: label, **_facts(totals, shape)})
    return found


def _label(item: tuple[int, str | int]) -> str:
    return str(item[1])


def _groups(job: Job, responses: Responses) -> Json | None:
    """How many groups, how large, how many of one row or of equal rewards."""
    if "group" not in job.columns:
        return None
    rows = responses["valid"]
    moments, constant = group_statistics(responses, responses["reward"], rows=rows)
    first = _first_of_each(responses["group"][rows])
    size, equal = moments.number[rows][first].to(torch.int64), constant[rows][first]
    if not size.numel():
        return {"count": 0, "single": 0, "zero_variance": 0, "size": None, "sizes": {}}
    several = size > 1
    values, counts = torch.unique(size, return_counts=True)
    return {
        "count": int(size.numel()),
        "by": [job.columns.column(role) for role in ("batch", "group") if role in job.columns],
        "single": int((~several).sum()),
        "zero_variance": int((equal & several).sum()),
        "size": {
            "min": int(size.min()),
            "median": float(size.double().quantile(0.5)) if size.numel() < 1 << 24 else None,
            "max": int(size.max()),
        },
        "sizes": dict(zip(values.tolist()[:100], counts.tolist()[:100], strict=True)),
    }


def _first_of_each(codes: torch.Tensor) -> torch.Tensor:
    """The position of one row of each code that occurs."""
    order = torch.argsort(codes, stable=True)
    counts = torch.unique_consecutive(codes[order], return_counts=True)[1]
    return order[offsets_of(counts)[:-1]]


def _coefficients(responses: Responses, shape: Shape) -> list[Json] | float:
    """β: one number, or one per batch where it adapts."""
    if shape.recipe.kl_target is None or "beta" not in responses:
        return shape.recipe.kl_coef
    first = _first_of_each(responses["batch"])
    labels = responses.labels["batch"]
    return [
        {"batch": labels[code], "coefficient": beta}
        for code, beta in zip(
            responses["batch"][first].tolist(), responses["beta"][first].tolist(), strict=True
        )
    ]


def warnings_of(job: Job, responses: Responses, summary: Json, edges: dict[str, int]) -> list[str]:
    """What users lose days to, said before they train on it."""
    columns, rows = job.columns, summary["responses"]
    groups, advantage = summary["groups"] or {"single": 0, "count": 0}, summary["advantage"]
    old, infer = columns.columns.get("old_log_probs"), columns.columns.get("infer_log_probs")
    empty = int((responses["tokens"] == 0).sum())
    nonfinite = summary["masked"]["nonfinite"]["responses"]
    sums_kl = job.shape.recipe.kl_coef > 0 and job.shape.estimator.name == "raw"
    said = [
        ("mask" not in columns, "no mask column: every token counts as the policy's own"),
        (groups["single"] * 2 > groups["count"], _single_rows(job, groups)),
        (
            "ref_log_probs" in columns and old is None,
            "KL not measured: no column for old_log_probs (--map old_log_probs=COLUMN)",
        ),
        (
            advantage["mean"] is not None and advantage["min"] == advantage["max"] == 0,
            "all advantages are zero: nothing would be learnt from this file",
        ),
        (
            edges["padded"] * 2 > rows,
            (
                f"{edges['padded']} of {rows} responses end in masked tokens whose old log-prob is "
                "exactly 0: are the lists padded? Lists without padding are expected"
            ),
        ),
        (
            edges["shifted"] * 2 > rows,
            (
                f"{edges['shifted']} of {rows} responses begin or end with a policy token whose "
                "old log-prob is exactly 0: are mask and log-probs shifted by one?"
            ),
        ),
        (
            old is not None and old == infer,
            f"old and infer log-probs are the same column, `{old}`",
        ),
        (sums_kl, "kl_coef has its effect through token rewards only; raw sums them"),
        (empty > 0, f"{empty} responses have no policy token: they get no advantage"),
        (nonfinite > 0, f"{nonfinite} responses left out: a number in them is not finite"),
    ]
    return [*(text for true, text in said if true), *responses.notes.get("warnings", [])]


def _single_rows(job: Job, groups: Json) -> str:
    """Most groups have one row: the group key is wrong, or batches split the groups."""
    group = job.columns.columns.get("group")
    text = (
        f"{groups['single']} of {groups['count']} groups have one row: is `{group}` the prompt? "
        "(--map group=COLUMN)"
    )
    if "batch" not in job.columns or job.shape.recipe.numerics.batch == "all":
        return text
    step = job.columns.column("batch")
    return f"{text} A group is within one `{step}`; --map batch=none joins all"
