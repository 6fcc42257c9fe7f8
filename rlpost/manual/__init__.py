"""The manual: Markdown pages by topic."""

from __future__ import annotations

import re
from html import unescape
from importlib.resources import files

TOPICS = {
    "index": "This list.",
    "start": "Installation, a first result, recipes, the shell.",
    "columns": "Input files, roles, column names and output columns.",
    "advantages": "The stages in order, with formulas and options.",
    "estimators": "The advantage estimators, and how to use your own.",
    "frameworks": "Presets, dumps and exports of frameworks.",
    "screens": "What screens print: labels, JSON names, alarming values.",
    "inspect": "Statistics of rollout files, and findings.",
    "loss": "Policy losses: clipping, ratios, KL, zero gradients.",
    "compare": "Files and recipes side by side; a trainer's numbers.",
    "report": "An HTML report, and the terminal browser.",
    "python": "Python, other libraries, notebooks, training.",
    "scale": "Many files, object stores, Ray, array jobs, GPUs.",
    "guarantees": "Outputs, accuracy, hostile input, exit codes, metadata.",
    "options": "Every option, once.",
}
"""Each topic with one line that describes its page."""
OF_COMMANDS = {
    "browse": "report",
    "replay": "compare",
    "verify": "guarantees",
    "convert": "frameworks",
    "export": "frameworks",
    "config": "start",
    "list": "index",
    "doctor": "scale",
    "help": "index",
}
"""The topic of each command that has no page of its own name."""


def topic_of(word: str) -> str | None:
    """Return the topic that a word names: a topic, a command, or the beginning of one.

    >>> topic_of("replay"), topic_of("guar"), topic_of("re")
    ('compare', 'guarantees', None)
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


def table(name: str) -> list[dict[str, str]]:
    r"""Return the rows of a generated table, by heading.

    >>> table("estimators")[0]["formula"]
    'δₜ = rₜ + γVₜ₊₁ - Vₜ; Aₜ = δₜ + γλAₜ₊₁'
    """
    mark = f"<!-- generated: {name} -->"
    text = next(text for text in map(page, TOPICS) if mark in text).partition(mark)[2]
    lines = [
        [unescape(cell).strip().strip("`").replace(r"\|", "|") for cell in _CELL.split(line)[1:-1]]
        for line in text.partition("<!-- end -->")[0].splitlines()
        if line.startswith("|")
    ]
    headings, _, *rows = lines
    return [dict(zip(headings, row, strict=True)) for row in rows]


_CELL = re.compile(r"(?<!\\)\|")
