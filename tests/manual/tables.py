"""The manual's reference tables, made of the declarations that the program itself uses."""

from __future__ import annotations

import inspect
import json
import math
import re
from typing import Any, Literal, get_args, get_origin

from bench.history import chart
from manual.program import COMMANDS, commands, run

from rlpost import Numerics, functional
from rlpost.analysis.inspect.about import TOPICS as INSPECT_TOPICS
from rlpost.analysis.inspect.findings import FINDINGS
from rlpost.analysis.loss.log import METRICS
from rlpost.analysis.replay import findings as replay
from rlpost.analysis.replay.stages import STAGES
from rlpost.cli.help_screen import OPTIONS, PANELS, value_of
from rlpost.estimators import ESTIMATORS
from rlpost.formats import FORMATS
from rlpost.losses import LOSSES
from rlpost.manual import OF_COMMANDS, TOPICS
from rlpost.pipeline.findings import FINDINGS as RUN_FINDINGS
from rlpost.pipeline.loss_measures import OF_BATCHES, OF_INPUT, OF_LOSS
from rlpost.pipeline.measures import MEASURES, POPULATIONS
from rlpost.recipe.loss import ABOUT_AGGREGATIONS
from rlpost.recipe.presets import correction_named
from rlpost.recipe.presets import corrections as every_correction
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import ROLES

USES = {
    "group": "prompt groups",
    "reward": "most estimators",
    "mask": "policy and observation tokens; without it every token is a policy token",
    "old_log_probs": "KL, off-policy correction, policy loss",
    "ref_log_probs": "KL",
    "infer_log_probs": "off-policy correction; policy loss with `--behaviour infer`",
    "log_probs": "policy loss",
    "token_rewards": "optional process rewards, which are added to the reward",
    "advantages": "`loss`, `compare`, `inspect`, `report`",
    "is_weight": "policy loss",
    "batch": "batches, and so prompt groups, whitening, batch and running statistics, adaptive KL",
    "domain": "running statistics, tables by domain, `hierarchical_grpo`",
    "difficulty": "`--difficulty-weight`",
    "truncated": "`--drop-truncated`, `--truncation-penalty`, `--bootstrap`",
    "response_length": "lengths of inputs without tokens",
    "sample_mask": "optional: 0 leaves the response out; policy loss",
    "sample_weight": "policy loss",
    "rollout": "rollouts of several rows: what statistics of responses count",
    "branch": "the branches of a rollout, such as forks and sub-agents",
    "turn": "the turns of a rollout, in order",
    "turn_reward": "the reward of a turn; null: none",
    "agent_role": "the agent of a turn; a rollout ends with that of its first row",
    "policy_version": "the policy that sampled a response (a number) or its tokens (a list): ages",
    "entropy": "the policy's entropy per token; `--top-entropy-quantile`",
    "failure": "a rollout that failed without an answer: a reason, or a bool",
    "next_value": "`--bootstrap column`: the value after the last token of a truncated response",
    "response_token_ids": "findings and browse of rows that share a prefix",
    "prompt_token_ids": "findings and browse of rows that share a prefix",
    "run_attempt": "the restart of a run that wrote a row",
    "attempt": "the attempt at a rollout, whose id all its attempts have",
}
"""What uses a role, beside the estimators that need it."""
OF_MOST = ("group", "reward", "batch")
"""Roles of so many estimators that a list of them is no help."""


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    """The text in one line, without what ends a cell; `<` is text, not the start of a tag."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("|", "\\|"))
    return "".join(x if x.startswith("`") else x.replace("<", "&lt;") for x in parts)


def code(text: str) -> str:
    """The text as code; nothing if it is empty."""
    return f"`{text}`" if text else ""


def codes(names: Any) -> str:
    return ", ".join(map(code, names))


def topics() -> str:
    rows = [(f"[{name}]({name}.md)", about) for name, about in TOPICS.items()]
    return table(("topic", "content"), [row for row in rows if "index" not in row[0]])


def commands_table() -> str:
    rows = [
        (code(f"rlpost {name}"), about, f"[{topic}]({topic}.md)")
        for name, about in COMMANDS.items()
        for topic in [OF_COMMANDS.get(name, name)]
    ]
    return table(("command", "what it does", "page"), rows)


def roles() -> str:
    needing: dict[str, list[str]] = {}
    for one in ESTIMATORS.values():
        for role in dict.fromkeys((*one.roles, *one.needs)):
            needing.setdefault(role, []).append(one.name)
    rows = []
    for name, role in ROLES.items():
        column, *aliases = role.aliases
        estimators = "" if name in OF_MOST else codes(needing.get(name, ()))
        used = "; ".join(part for part in (USES.get(name, ""), estimators) if part)
        rows.append((code(name), code(column), role.kind, used, codes(aliases)))
    return table(("role", "column", "kind", "used by", "aliases"), rows)


def estimators() -> str:
    listed = json.loads(run(["list", "estimators", "--format", "json"]).out)
    own = [one for one in listed if one["estimator"] in ESTIMATORS]
    rows = [(code(x["estimator"]), x["level"], x["needs"], x["formula"], x["source"]) for x in own]
    return table(("estimator", "level", "needs", "formula", "source"), rows)


def estimator_options() -> str:
    rows = []
    for one in ESTIMATORS.values():
        options = [_flag(name) for name in one.keywords if name in Recipe.model_fields]
        numerics = [name for name in one.keywords if name in Numerics.model_fields]
        defaults = [
            "yes" if x is True else "no" if x is False else x for x in one.defaults.values()
        ]
        rows.append((code(one.name), *defaults, codes(options), codes(numerics)))
    defaults = [code(_flag(name)) for name in ESTIMATORS["grpo"].defaults]
    headings = ("estimator", *defaults, "options", "numerics")
    return table(headings, rows)


def options_of_estimators() -> str:
    listed = json.loads(run(["list", "estimators", "--format", "json"]).out)
    options: dict[str, Any] = {}
    estimators: dict[str, list[str]] = {}
    for entry in listed:
        for option in entry["options"]:
            options.setdefault(option["option"], option)
            estimators.setdefault(option["option"], []).append(entry["estimator"])
    rows = [
        (code(name), codes(estimators[name]), x["type"], code(_default_of(x)), x["meaning"])
        for name, x in options.items()
    ]
    return table(("`--option`", "estimators", "type", "default", "meaning"), rows)


def _default_of(option: Any) -> str:
    default = option["default"]
    return (
        "" if default in (None, []) else f"{default:g}" if isinstance(default, float) else default
    )


def _flag(field: str) -> str:
    """The option of a field of the recipe."""
    return "--teacher" if field == "teachers" else "--" + field.replace("_", "-")


def losses() -> str:
    rows = []
    for name, one in LOSSES.items():
        shown = ", ".join(
            f"`{_flag(key) if key in one.fields else key}` {_value(x.plain(x.default))}"
            for key, x in one.parameters.items()
        )
        how = code(one.aggregation)
        rows.append((code(name), one.about, code(one.formula), how, shown, one.source))
    headings = ("loss", "what it is", "loss of a token", "aggregation", "defaults", "source")
    return table(headings, rows)


def aggregations() -> str:
    rows = [(code(name), about) for name, about in ABOUT_AGGREGATIONS.items()]
    return table(("aggregation", "how the losses of tokens become one number"), rows)


def corrections() -> str:
    rows = []
    for name in every_correction():
        recipe, loss = correction_named(name)
        fields = {key: x for key, x in recipe.items() if key != "numerics"} | loss
        words = [f"`{_flag(key)} {_words(x)}`" for key, x in fields.items()]
        rows.append((code(name), ", ".join(words)))
    return table(("`--correction`", "sets"), rows)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_words, value))
    return re.sub(r"-?0\.\d{7,}", lambda found: f"{float(found[0]):.4g}", str(value))


def presets() -> str:
    listed = json.loads(run(["list", "presets", "--format", "json"]).out)
    headings = tuple(name.replace("_", " ") for name in listed[0])[:-1]
    rows = [(code(first), *others) for first, *others, _ in (tuple(x.values()) for x in listed)]
    return table(headings, rows)


def numerics() -> str:
    rows = []
    for name, info in Numerics.model_fields.items():
        values = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
        shown = codes(map(str, values)) if values else "number"
        default = code(_value(info.default))
        rows.append((code(name), shown, default, info.description or ""))
    return table(("field", "values", "default", "meaning"), rows)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "never" if math.isinf(value) else f"{value:g}"
    return str(value)


def formats() -> str:
    rows = []
    for one in FORMATS.values():
        given = [role for role in one.roles if role not in one.missing_roles]
        some = [role for role in one.roles if role in one.missing_roles]
        generic = one.name in ("jsonl", "parquet")
        roles = "all that its fields have" if generic else ", ".join(given)
        rows.append((code(one.name), one.title, roles, "" if generic else ", ".join(some)))
    headings = ("`--from`", "dump", "roles", "roles that only some dumps have")
    return table(headings, rows)


def export() -> str:
    listed = json.loads(run(["list", "targets", "--format", "json"]).out)
    rows = [(code(name), *values) for name, *values in (target.values() for target in listed)]
    headings = ("`--to`", "writes", "needs", "optional", "other columns", "note", "read by")
    return table(headings, rows)


def recorded() -> str:
    rows = [(code(one.name), one.title, one.level, codes(one.names[1:])) for one in STAGES.values()]
    return table(("column", "stage", "a number for each of", "other names"), rows)


def findings() -> str:
    rows = [
        (code(one.name), one.severity, ", ".join(one.needs), one.meaning)
        for one in FINDINGS.values()
    ]
    return table(("finding", "severity", "needs", "meaning"), rows)


def inspect_topics() -> str:
    rows = [(code(name), one.meaning) for name, one in INSPECT_TOPICS.items()]
    return table(("topic", "content"), rows)


def logged_metrics() -> str:
    rows = [
        (code(name), codes(computed.split()) or "not computed", codes(columns.split()))
        for name, (columns, computed) in METRICS.items()
    ]
    return table(("metric", "computed number, or one of", "other names"), rows)


def loss_measures() -> str:
    measures = [(x.name, POPULATIONS[x.of].words, x.about) for x in (*OF_INPUT, *OF_LOSS)]
    batches = "batches with a token in the loss"
    measures += [(name, batches, about) for name, about in OF_BATCHES.items()]
    rows = [(code(name), of, about) for name, of, about in measures]
    return table(("measure", "of", "content"), rows)


def run_findings() -> str:
    rows = [
        (code(name), f"error or {x.level}" if x.certain else x.level, x.meaning)
        for name, x in RUN_FINDINGS.items()
    ]
    return table(("finding", "severity", "meaning"), rows)


def replay_findings() -> str:
    return _findings([*replay.CAUSES.values(), replay.NOT_FINITE])


def _findings(checks: Any) -> str:
    rows = [
        (code("option:FIELD" if one.name == "option" else one.name), one.meaning, one.advice)
        for one in checks
    ]
    return table(("finding", "what it is", "why it matters, and what to do"), rows)


def functions() -> str:
    names = [name for name in functional.__all__ if inspect.isfunction(getattr(functional, name))]
    rows = [(code(name), _first_line(getattr(functional, name))) for name in names]
    return table(("function", "what it computes"), rows)


def _first_line(thing: Any) -> str:
    """The first sentence of a docstring, without `Return`."""
    line = (inspect.getdoc(thing) or "").partition("\n\n")[0].rstrip(".").removeprefix("Return ")
    return line[:1].upper() + line[1:]


def options() -> str:
    """Every option once: of a recipe by panel, the others with the commands that have them."""
    recipe: dict[str, dict[tuple[str, ...], None]] = {panel: {} for panel in PANELS}
    others: dict[str, dict[tuple[str, ...], list[str]]] = {panel: {} for panel in PANELS}
    users: list[str] = []
    for name, command in commands().items():
        takes_recipe = {"gamma", "kl_coef"} <= {option.name for option in command.params}
        users += [code(name)] * takes_recipe
        for option in command.params:
            if option.param_type_name != "option" or option.hidden:
                continue
            panel = option.rich_help_panel or OPTIONS
            if takes_recipe and option.name in Recipe.model_fields:
                recipe[panel][_option(option)] = None
            else:
                others[panel].setdefault(_option(option), []).append(name)
    tables = [
        f"### {panel}\n\n{table(('option', 'meaning'), [*rows])}\n\n"
        for panel, rows in recipe.items()
        if rows
    ]
    rows = [(*row, ", ".join(names)) for by in others.values() for row, names in by.items()]
    about = f"## Options of a recipe\n\nOf {', '.join(users)}.\n\n"
    of_commands = table(("option", "meaning", "commands"), sorted(rows))
    return f"{about}{''.join(tables)}## Options of commands\n\n{of_commands}\n"


def _option(option: Any) -> tuple[str, ...]:
    """Its names with its value, and its help with the default."""
    value = "" if option.is_flag else f" {value_of(option)}"
    first, *more = (*option.opts, *option.secondary_opts)
    more = [name for name in more if not name.startswith("--no-")]
    return ", ".join(map(code, [f"{first}{value}", *more])), option.help


def measures() -> str:
    """The measures of a summary, each with its kind and its population."""
    of_component = dict.fromkeys(
        ("component", "reward_correlation", "advantage_share", "equal_component"), "NAME"
    )
    of_filter = dict.fromkeys(("rejected", "rejected_responses"), "FILTER")
    ends = {"correlation": "A,B", **of_component, **of_filter}
    kept = "policy tokens of kept responses"
    rows = []
    for measure in MEASURES:
        name, colon, _ = measure.name.partition(":")
        named = f"{name}:{ends.get(name, 'MASK')}" if colon else name
        words = POPULATIONS[measure.of].words.format(unit="response", tokens=kept)
        rows.append((f"`{named}`", measure.kind, words, measure.about))
    return table(("measure", "kind", "of", ""), rows)


TABLES = {
    "about": inspect_topics,
    "speed": chart,
    "topics": topics,
    "commands": commands_table,
    "roles": roles,
    "estimators": estimators,
    "estimator-options": estimator_options,
    "options-of-estimators": options_of_estimators,
    "losses": losses,
    "aggregations": aggregations,
    "corrections": corrections,
    "presets": presets,
    "numerics": numerics,
    "formats": formats,
    "export": export,
    "recorded": recorded,
    "findings": findings,
    "measures": measures,
    "logged-metrics": logged_metrics,
    "loss-measures": loss_measures,
    "run-findings": run_findings,
    "replay-findings": replay_findings,
    "functional": functions,
    "options": options,
}
