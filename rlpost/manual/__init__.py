"""The manual: Markdown pages by topic."""

from __future__ import annotations

import re
from html import unescape
from importlib.resources import files

TOPICS = {
    "index": "This list.",
    "install": "Installation, extras and locked versions.",
    "input": "Input files, roles, column names and output columns.",
    "pipeline": "The stages in order, with formulas and options.",
    "estimators": "The advantage estimators, and how to use your own.",
    "recipes": "Recipe files, environment variables, shell completion.",
    "presets": "Presets of frameworks, and what differs between frameworks.",
    "formats": "Conversion of the rollout dumps of frameworks.",
    "export": "Export to the files of training frameworks.",
    "screens": "What screens print: labels, JSON names, alarming values.",
    "inspect": "Statistics of rollout files, and findings.",
    "report": "An HTML report.",
    "browse": "The terminal browser.",
    "compare": "Comparison of files and of recipes.",
    "replay": "Recorded numbers of a trainer: replays and searches.",
    "losses": "Policy losses: clipping, ratios, KL, zero gradients.",
    "training": "Training on the output.",
    "python": "The Python interface and the formulas as functions.",
    "notebook": "A notebook, from the installation to a report.",
    "sidecar": "New columns beside the data: polars, duckdb, Ray, ...",
    "gpu": "GPUs: torch for them, --device, exactness, a self-test.",
    "large-runs": "Many files: folders that grow, object stores, Ray.",
    "metadata": "Metadata of files, and the JSON summary.",
    "accuracy": "What results depend on, and bounds on errors.",
    "safety": "Complete outputs, verification, hostile input.",
    "exit-codes": "Exit codes and output streams, for scripts.",
    "options": "All options of all commands.",
}
"""Each topic with one line that describes its page."""
OF_COMMANDS = {
    "advantages": "pipeline",
    "convert": "formats",
    "loss": "losses",
    "verify": "safety",
    "config": "recipes",
    "list": "presets",
    "doctor": "gpu",
    "help": "index",
}
"""The topic of each command that has no page of its own name."""


def topic_of(word: str) -> str | None:
    """Return the topic that a word names: a topic, a command, or the beginning of one.

    >>> topic_of("loss"), topic_of("train"), topic_of("re")
    ('losses', 'training', None)
    """
    names = {**{topic: topic for topic in TOPICS}, **OF_COMMANDS}
    topics = {names[word]} if word in names else {
        names[name] for name in names if word and name.startswith(word)
    }  # fmt: skip
    return topics.pop() if len(topics) == 1 else None


def page(topic: str) -> str:
    """Return the Markdown text of a topic's page; raises KeyError if there is none."""
    if topic not in TOPICS:
        raise KeyError(topic)
    return (files(__name__) / f"{topic}.md").read_text(encoding="utf-8")


def table(name: str, topic: str = "") -> list[dict[str, str]]:
    r"""Return the rows of a generated table, by heading, from a page: that of the same name.

    >>> table("estimators")[0]["formula"]
    'δₜ = rₜ + γVₜ₊₁ - Vₜ; Aₜ = δₜ + γλAₜ₊₁'
    """
    _, _, text = page(topic or name).partition(f"<!-- generated: {name} -->")
    lines = [
        [unescape(cell).strip().strip("`").replace(r"\|", "|") for cell in _CELL.split(line)[1:-1]]
        for line in text.partition("<!-- end -->")[0].splitlines()
        if line.startswith("|")
    ]
    headings, _, *rows = lines
    return [dict(zip(headings, row, strict=True)) for row in rows]


_CELL = re.compile(r"(?<!\\)\|")
