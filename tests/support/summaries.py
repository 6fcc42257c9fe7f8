"""What a summary says: texts of findings, and the numbers of a measure or a slice."""

import math

from rlpost.pipeline.findings import texts_of

NOTHING = {"count": 0, "total": 0, "mean": None, "value": None}


def warnings_of(summary):
    """The texts of warnings."""
    return texts_of(summary, "warning")


def errors_of(summary):
    """The texts of errors."""
    return texts_of(summary, "error")


def whole(summary, name):
    """The numbers of a measure over the whole input; none of what the recipe does not do."""
    return summary["facts"].get(name, {"all": NOTHING})["all"]


def numbers(summary):
    """The numbers of each measure over the whole input."""
    return {name: entry["all"] for name, entry in summary["facts"].items()}


def statistic(summary, name):
    """Mean, std, min and max of a measure over the whole input."""
    entry = whole(summary, name)
    return {part: entry[part] for part in ("mean", "std", "min", "max")}


def parts(summary, by):
    """The numbers of each step or domain: its `label`, and those of each measure."""
    facts = summary["facts"]
    labels = facts["kept"].get(by, {"label": []})["label"]
    return [
        {"label": label}
        | {
            name: {key: values[at] for key, values in entry[by].items() if key != "label"}
            for name, entry in facts.items()
        }
        for at, label in enumerate(labels)
    ]


def dropped(summary):
    """How many responses are not kept."""
    kept = whole(summary, "kept")
    return kept["count"] - kept["total"]


def near(one, other):
    """Whether two numbers, or lists of them, are equal to 11 digits; None and labels are equal."""
    if isinstance(one, list):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, float) and other is not None:
        return math.isclose(one, other, rel_tol=1e-11, abs_tol=1e-14)
    return one == other


def same_numbers(facts, summary, ignored=()):
    """Check that inspect has the numbers of a summary under each name of both; return these."""
    head = ("responses", "rollouts", "groups", "tokens")
    ours = {**facts.as_json(), "tokens": facts.tokens}
    assert {name: ours[name] for name in head} == {name: summary[name] for name in head}
    names = (facts.facts.keys() & summary["facts"].keys()) - {*ignored}
    for name in names:
        for by in ("all", "step", "domain"):
            left, right = (entry[name].get(by, {}) for entry in (facts.facts, summary["facts"]))
            for key in left.keys() & right.keys():
                assert near(left[key], right[key]), (name, by, key)
    return names
