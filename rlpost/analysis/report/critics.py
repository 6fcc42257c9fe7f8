"""Sections of the critic and of the policy's entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about import TOPICS
from rlpost.analysis.inspect.about.critic import summary_lines, verdict
from rlpost.analysis.inspect.about.entropy import covariance_text, name_of
from rlpost.analysis.report.charts import bars, line
from rlpost.analysis.report.page import Section, Tile
from rlpost.display.text import number, percent

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts


def critic(facts: Facts) -> Section | None:
    """Return the critic's calibration, its λ and its tables; None without a critic."""
    found = facts.critic
    if found is None:
        return None
    lines = [*summary_lines(facts, found), verdict(found).text]
    explained = percent(found.explained_variance)
    tiles = [
        Tile("Explained variance", explained, "of the returns", "critic.explained_variance"),
        Tile("Error of the value", number(found.rmse), "root mean square", "critic.rmse"),
    ]
    leads = [one.returns - one.value for one in found.calibration]
    labels = [number(one.value, digits=2) for one in found.calibration]
    title = "Mean return less mean value, by decile of the value"
    charts = [bars(title, labels, leads, "more return than value", "mean value of the decile")]
    if found.lambdas:
        errors = [one.error for one in found.lambdas]
        title = "Error of the target of a prompt's first token, √(bias² + variance)"
        note = "around the mean return of the prompt's group"
        lams = [f"{one.lam:g}" for one in found.lambdas]
        charts.append(line(title, lams, errors, "λ", from_zero=True, note=note))
    tables = TOPICS["critic"].run(facts).parts
    return Section("critic", "Critic", lines, tiles, charts, tables)


def entropy(facts: Facts) -> Section | None:
    """Return the entropy by position and step; None if it is unknown."""
    found = facts.entropy
    if found is None:
        return None
    tiles = [
        Tile("Mean entropy", number(found.mean), "nats a policy token", "entropy.mean"),
        Tile("In the highest 20 %", percent(found.top_share), "of the sum", "entropy.top_share"),
    ]
    if found.covariance:
        value = number(found.covariance[0].value)
        tiles.append(Tile("Covariance", value, covariance_text(found)))
    by_position = found.by_position
    charts = [
        bars(
            "Mean entropy by position in the response", [str(one.label) for one in by_position],
            [one.mean for one in by_position], "nats", "policy token",
        )
    ]  # fmt: skip
    if len(found.steps) > 1:
        labels, means = [one.label for one in found.steps], [one.mean for one in found.steps]
        axis = facts.roles["batch"].column
        charts.append(line("Mean entropy by step", labels, means, axis, from_zero=True))
    if len(found.covariance) > 1:
        own = found.covariance[1:]
        title = "Covariance of log-prob and advantage by step"
        axis = facts.roles["batch"].column
        charts.append(
            line(title, [one.label or 0 for one in own], [one.value for one in own], axis)
        )
    return Section("entropy", name_of(found), tiles=tiles, charts=charts)
