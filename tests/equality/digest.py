"""What is compared of a case: exit codes, JSON, columns of Parquet files, numbers of reports."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.equality import old_loss
from tests.equality.facts import by_measure, comparable
from tests.equality.old_inspect import in_one_layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Leaves = dict[str, Any]

# Keys of JSON that were renamed on purpose, old to new: dotted names without list indices, as
# "groups.old_name": "groups.new_name". Each needs a reason beside it.
RENAMED: dict[str, str] = {
    "masked.max_len": "masked.longer",  # masks have the names of their options
    "masked.error_max_len": "masked.long_errors",
    "masked.zero_variance": "masked.equal_rewards",
    "masked.single_response": "masked.single",
    "zero_variance": "no_signal",  # of groups whose rewards are equal
    "recipe.error_max_len_clip": "recipe.drop_long_errors",
    "recipe.drop_zero_variance": "recipe.drop_equal_rewards",
}

# Keys of JSON that were added on purpose, with what is below them, as dotted names. Each needs a
# reason beside it.
ADDED = {
    # of the picture: groups and lengths, and the sizes of advantages and of log-ratios
    *("profiles.groups", "profiles.length", "profiles"),
    *(f"facts.{name}" for name in ("ref_gap", "ref_gap_size", "engine_gap_size", "mass_positive")),
    # of a run on Ray, as of a local one
    *(f"bytes.{name}" for name in ("decoded", "written", "copied", "to_device", "to_host")),
    *old_loss.ADDED,
    *("options.loss_options", "options.pg_clip"),  # both sides are one value
    *("rlpost.loss.loss_options", "rlpost.loss.pg_clip"),
    "search.same_numbers",  # of `replay`: recipes, without what separates them
    *("recipe.drop_longer", "recipe.drop_difficulty"),  # one value for a mask and its bounds
    "recipe.options",  # those of rlpost's estimators, which were fields
    "shown",  # sections of a report, which are the pages of `inspect` as HTML
    *("groups.line", "responses.line"),  # of a report's examples: those of `inspect --prompt`
    # of `replay`: a stage and the whole input have the same facts
    *("stages.first_rows", "whole_input.identical", "whole_input.unit"),
    # of `inspect`: what it leaves out of statistics of responses, as `advantages` does, so that its
    # numbers of an input with failures, attempts or a sample mask are others
    *("uncounted", "failures.treatment"),
    # one type of finding for all commands, with columns, rows and option
    *("findings", "checks", "report.html.findings"),
    # the head and the statistics of measures that every command has in JSON
    *("responses", "rollouts", "groups", "groups_with_signal", "roles", "verdict", "findings"),
    *("facts", "rlpost_version"),
    # of `replay`: an example is one number, of a response or of its token that differs the most
    *("examples.token", "examples.recorded", "examples.computed"),
    # of `compare`: names alone, correlations, and how rows were matched
    *("sides", "pairs.pearson", "pairs.spearman", "matched_by", "by_order_within"),
    # of `advantages`: counts of populations, spreads of groups and errors of values, each by step
    # and domain, too
    *("facts", "tokens"),
    "device",  # the name alone
}

# Columns that were added on purpose, likewise.
ADDED_COLUMNS: set[str] = set()

# Keys of JSON that were removed on purpose, likewise; the name of the file may come first.
REMOVED = {
    "rlpost.summary.profiles",  # of files: they are for the picture of a run
    "rlpost.loss_summary",  # of a loss, in the footer: nothing reads it, and no page names it
    *(  # options of single losses, which `options.loss_options` has
        f"{place}.{name}"
        for place in ("options", "rlpost.loss")
        for name in (
            *("pg_clip_low", "pg_clip_high", "ratio_cap", "cispo_bounds", "cispo_mask"),
            *("tis_low", "tis_high", "topr_positive", "topr_negative", "kimi_tau"),
            *("sapo_tau_pos", "sapo_tau_neg", "prob_mask", "prob_mask_low", "prob_mask_high"),
            *("square_coef", "kl_mask", "kl_mask_low", "kl_mask_high", "dro_beta", "cov_low"),
            *("cov_high", "cov_share", "cov_seed", "kl_cov_coef", "real_tau", "fipo_half_life"),
            *("fipo_clip_low", "fipo_clip_high", "fipo_safety", "oreal_positive", "oreal_sft"),
            *("oreal_negative", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg"),
            *("vespo_lambda_neg", "kl_loss_log_ratio_clamps", "kl_loss_clamps"),
            "kl_loss_clamp_at",
        )
    ),
    *("recipe.is_cap_where", "recipe.version_offset"),  # caps outside bounds; shifted ages
    "recipe.estimator_for",  # estimators of agents in one file
    "recipe.trained_once",  # a mask of tokens of several rows
    *("recipe.micro_batch", "recipe.micro_batch_tokens"),  # batches of masks are those of steps
    # fields that are options of the estimators that have them, in `recipe.options`, which was empty
    "recipe.options",
    *(f"recipe.{name}" for name in (
        "lambda_policy", "lambda_value", "length_adaptive_alpha", "step_gamma", "episode_weight",
        "step_weight", "f_norm", "ema_decay", "otb_is_cap", "vtrace_rho_cap", "vtrace_c_cap",
        "episode_domains",
    )),
    *(f"recipe.numerics.{name}" for name in (
        "segment_reward", "turn_value", "turn_baseline", "gar_floor", "gar_cap", "gdpo_batch",
        "batch_eps", "otb_position", "otb_lone", "otb_eps", "episodes", "states", "rae_order",
    )),
    "earlier_code",  # of `presets`: the presets of earlier code are golden data
    "rlpost.sidecar",  # by which a join recognised the input of new columns
    *("recipe.max_len_mask", "recipe.max_response_length"),  # `drop_longer`
    *("numerics.log_ratio_clamps", "numerics.kl_clamps", "numerics.is_clamp_at"),
    *("recipe.is_floor", "recipe.is_normalise", "recipe.is_filter_where"),  # of other `is_` fields
    "numerics.failed",  # `failures` is mask
    *("recipe.reward_clip_low", "recipe.kl_horizon"),  # of `reward_clip` and `kl_target`
    *("recipe.difficulty_mask", "recipe.difficulty_low", "recipe.difficulty_high"),
    *("search.ties", "search.tie_count"),  # `search.same_numbers`, without what separates them
    "rlpost.checksums",  # of all column chunks, in the footer
    "files.checksums",  # of `verify`: whether they agree
    # of a report: its tiles and tables are the pages of `inspect` as HTML, in `shown`
    *("report.html.sections", "report.html.inputs", "report.html.recipe", "report.html.verdict"),
    # of its examples: `inspect --prompt` counts a rollout once and no failure
    *("report.html.groups.text", "report.html.groups.responses.facts"),
    "report.html.groups.responses.rollout.line",  # the title of its table
    *("sides.rates", "sides.components"),  # of `compare`: the summary of each run has them
    # of `compare`: `facts` has them by name, step and domain
    *("sides.name", "sides.advantage", "pairs.responses", "pairs.tokens", "population"),
    *("rows.count", "rows.matched_by", "rows.by_order_within", "rows.unequal_lengths"),
    *("rows.left_out", "warnings"),  # `findings`
    # of `replay`: quantiles, which do not add up part by part
    *("stages.median", "stages.largest_ulps", "stages.median_ulps"),
    # of a search: no screen shows them
    *(f"search.{name}" for name in ("skipped", "sample", "largest", "not_computed")),
    *("search.best.options", "search.same_numbers.options"),
    # of its examples: a strip of tokens
    *(f"examples.{name}" for name in ("tokens", "first_token", "policy", "differs")),
    *("examples.recorded", "examples.computed"),
    "mismatch.corrections",  # what usual corrections would touch: `advantages` has it of all tokens
    *("mismatch.ratio_edges", "mismatch.ratios"),  # histograms of log-ratios, by position and step
    *("devices", "split_chunks"),  # a run has one device, and no chunk is halved for its memory
    *("device.name", "device.reason", "device.accelerator_from_bytes"),  # `device` is the name
    "devices.not_tested",  # of `doctor`: `problems` has it
    "mismatch.unexplained",  # what the shares of causes leave
    "mismatch.causes.options",  # of frameworks: `advice` names them
    "mismatch.causes.estimate.first_tokens",  # `where` says it
    *("findings", "checks", "report.html.findings"),  # see `ADDED`
    "report.html.signal",  # which the picture of the overview shows
    "seconds.limits",  # what passes waited for
    "lengths.at_longest",  # of `inspect`: no page or check read it
    # of `advantages`: KL that nothing asks for, whose log-probs are not read
    *("facts.kl", "kl.estimator", "kl.coefficients", "kl.credit", "kl.measured"),
    *("roles.old_log_probs", "roles.ref_log_probs", "roles.log_probs"),
}  # fmt: skip

# Values that may differ between two runs of the same code. Their keys are still compared.
IGNORED = {
    *(
        "log_ratio_clamp",
        "kl_clamp",
        "is_clamp",
        "kl_loss_clamp",
    ),  # one value with what they bound: `k3:10`
    "schema_version",  # a change that breaks readers raises it
    "attempts",  # of a recipe, the newest by default; `facts` has the rows that this leaves out
    "seconds",  # timings
    "busy",  # timings of threads
    "decoded",  # bytes of the columns that are read: none that only a statistic needs
    "written",  # bytes of files, whose metadata have texts and names of keys
    "rlpost_version",
    "version",
    "rlpost.version",
    "semantics",  # a number that changed defaults and formulas raise
    "x-semantics",
    "rlpost.semantics",
    "devices",  # that computed: `--device` of tests.equality
    "device",
    "run",  # a random number in the metadata that ties the files of a run together
}
# Keys below which there are names for people, which are worded like texts.
# What passes and the stages of a run are called, and the checks of `inspect`: 29 in place of 41.
WORDED = {"passes", "computes", "checks"}
# Texts of a page whose numbers are again in the JSON of `inspect`, and whose wording chooses which
# of them are mentioned and in which unit.
NOTES = {"note"}
ROUNDED = " (rounding)"
"""The end of a difference in the last bits of a number."""
TEXT = "(text)"  # in place of a text: wording is not compared, that there is one is
VALUE = "(value)"  # in place of an ignored value
SCHEMA = b"ARROW:schema"  # holds all metadata again, texts and timings too; types are compared
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
_INDEX = r"(?:\[\d+\])*"  # of lists, between the names of a dotted name
_ON_PURPOSE = re.compile(
    "|".join(rf"\.{re.escape(name)}(?!\w)".replace(r"\.", _INDEX + r"\.") for name in ADDED)
    or "(?!)"
)
_REMOVED = re.compile(
    "|".join(rf"{re.escape(name)}(?!\w)".replace(r"\.", _INDEX + r"\.") for name in REMOVED)
    or "(?!)"
)
_SECTION = re.compile(r'<section id="([^"]*)">(.*?)</section></section>', re.DOTALL)
_SLICED = re.compile(r"rlpost\.summary\.facts\..*\.(step|domain)(\.|$)")
_DRAWING = re.compile("<svg.*?</svg>", re.DOTALL)  # a chart of a report
_PATHS = re.compile(r'\bd="([^"]*)"')


def digest(folder: Path, codes: list[int], prints: list[str], top: Path) -> Leaves:
    """Everything that is compared of a case, as a flat mapping of paths to values.

    Args:
        folder: the case's folder, with the files that its commands wrote.
        codes: the exit code of each command.
        prints: what each printed on stdout.
        top: the folder of this tree's cases; paths below it are made relative.
    """
    found: Leaves = {}
    for number, (code, printed) in enumerate(zip(codes, prints, strict=True)):
        found[f"exit code {number}"] = code
        data = parsed(printed)
        if data is not None:
            found |= flat(data, f"stdout {number}", top)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if path.suffix == ".parquet" and path.is_file():
            found |= parquet(path, name, top)
        elif path.suffix == ".json":
            found |= flat(json.loads(path.read_bytes()), name, top)
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            found |= flat(rows, name, top)
        elif path.suffix == ".html":
            found |= report(path, name)
        elif path.is_file():
            found[name] = "(file)"
    return found


def parsed(printed: str) -> Any:
    """What was printed as JSON, lines of JSON or TOML; None for other texts."""
    if not printed.strip():
        return None
    for read in (json.loads, lambda text: [json.loads(line) for line in text.splitlines()]):
        try:
            return read(printed)
        except json.JSONDecodeError:
            continue
    try:
        return tomllib.loads(printed)
    except tomllib.TOMLDecodeError:
        return None


def flat(data: Any, name: str, top: Path) -> Leaves:
    """Leaves of a tree of JSON by their paths, without texts and what may differ."""
    return dict(
        _leaves(
            in_one_layout(old_loss.in_facts(comparable(by_measure(data)))),
            name,
            str(top),
            ignored=False,
        )
    )


def _leaves(data: Any, path: str, top: str, *, ignored: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict) and data:
        for key, value in data.items():
            below = _comparable(key, value)
            yield from _leaves(below, f"{path}.{key}", top, ignored=ignored or key in IGNORED)
    elif isinstance(data, list):
        yield f"{path} length", len(data)
        if len(data) > 1 and all(isinstance(one, str) and " " not in one for one in data):
            yield path, [one.replace(top, "") for one in data]
            return
        for place, value in enumerate(data):
            yield from _leaves(value, f"{path}[{place}]", top, ignored=ignored)
    elif ignored:
        yield path, VALUE
    elif isinstance(data, str):
        yield path, TEXT if re.search(r"\s", data) else data.replace(top, "")
    elif isinstance(data, float):
        yield path, repr(data) if not math.isfinite(data) or data == 0 else data
    else:
        yield path, data


def _comparable(key: str, value: Any) -> Any:
    """A value without what is worded, and without an order that means nothing."""
    if key in WORDED and isinstance(value, dict | list):
        return VALUE
    return sorted(value, key=str) if key == "enum" and isinstance(value, list) else value


def parquet(path: Path, name: str, top: Path) -> Leaves:
    """Columns, row groups and metadata of a Parquet file."""
    with pq.ParquetFile(path) as file:
        footer, schema = file.metadata, file.schema_arrow
        table = file.read()
    found: Leaves = {f"{name} columns": table.column_names, f"{name} rows": table.num_rows}
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    found[f"{name} row groups"] = [group.num_rows for group in groups]
    for field in schema:
        column = table[field.name]
        found[f"{name} column {field.name}"] = f"{field.type} {column_hash(column)}"
    for key, value in (footer.metadata or {}).items():
        if key != SCHEMA:
            found |= _metadata(key.decode(), value, f"{name} metadata", top)
    return found


def _metadata(key: str, value: bytes, name: str, top: Path) -> Leaves:
    text = value.decode()
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        data = text
    leaves = flat({key: data}, name, top)
    # Numbers by step and domain are in the JSON of the run.
    return {path: x for path, x in leaves.items() if not _SLICED.search(path)}


def column_hash(column: pa.ChunkedArray) -> str:
    """A hash of types, nulls, lengths and the bits of all numbers of a column."""
    state = hashlib.sha256()
    _add(state, column.combine_chunks() if column.num_chunks != 1 else column.chunk(0))
    return state.hexdigest()[:16]


def _add(state: Any, array: pa.Array) -> None:
    kind = array.type
    state.update(f"{kind} {len(array)}".encode())
    state.update(np.packbits(pc.is_valid(array).to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_dictionary(kind):
        _add(state, array.dictionary_decode())
    elif (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
        state.update(lengths.to_numpy(zero_copy_only=False).tobytes())
        _add(state, array.flatten())
    elif pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            _add(state, pc.struct_field(array, place))
    elif pa.types.is_boolean(kind):
        state.update(np.packbits(array.fill_null(False).to_numpy(zero_copy_only=False)).tobytes())  # noqa: FBT003
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        zero = pa.scalar(0).cast(kind)
        state.update(array.fill_null(zero).to_numpy(zero_copy_only=False).tobytes())
    else:
        state.update(repr(array.to_pylist()).encode())


def report(path: Path, name: str) -> Leaves:
    """The numbers in the data of a page, and the lines that its charts draw.

    Texts of a page hold numbers ("8 of 64"); these count, the words about them do not, nor whether
    it is 0 or 0.00.
    """
    text = path.read_text(encoding="utf-8")
    block = re.search(r"<script[^>]*application/json[^>]*>(.*?)</script>", text, re.DOTALL)
    if block is None:
        return {name: "without data"}
    found = dict(_numbers(json.loads(block[1]), name))
    for section, html in _SECTION.findall(text):
        found |= dict(_numbers(_DRAWING.findall(html), f"{name}.shown.{section}"))
        words = re.sub("<[^>]*>", " ", _DRAWING.sub("", html))
        found |= dict(_numbers(words, f"{name}.shown.{section} texts"))
    return found


def _numbers(data: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in IGNORED | NOTES:
                yield from _numbers(value, f"{path}.{key}")
    elif isinstance(data, list):
        yield f"{path} length", len(data)
        for place, value in enumerate(data):
            yield from _numbers(value, f"{path}[{place}]")
    elif isinstance(data, str):
        if "<svg" in data:
            drawn = "\n".join(_PATHS.findall(data))
            yield path, hashlib.sha256(drawn.encode()).hexdigest()[:16]
        elif found := _NUMBER.findall(data):
            yield path, [float(one.replace(",", "")) for one in found]
    else:
        yield path, data


def renamed(leaves: Leaves) -> Leaves:
    """Leaves of the old tree under the names that the new one gives them."""
    return {_renamed(path): value for path, value in leaves.items()}


def _renamed(path: str) -> str:
    for old, new in RENAMED.items():
        assert old.count(".") == new.count("."), f"RENAMED: {old} and {new} differ in their dots"
        index = rf"({_INDEX}\.)"
        pattern = rf"(?<!\w){index.join(map(re.escape, old.split('.')))}(?!\w)"
        first, *others = new.split(".")
        there = first + "".join(rf"\g<{at}>{part}" for at, part in enumerate(others, 1))
        path = re.sub(pattern, there, path)
    return path


def differences(old: Leaves, new: Leaves) -> dict[str, str]:
    """What differs by path, as `old -> new`; columns come first."""
    old = renamed(old)
    new = _without_added_columns(old, new)
    found = {
        path: f"{_shown(old[path])} -> {_shown(new[path])}"
        + ROUNDED * _is_rounding(old[path], new[path])
        for path in old
        if path in new and _differ(old[path], new[path])
    }
    found |= {
        path: f"{_shown(old[path])} -> absent"
        for path in old
        if path not in new and not _REMOVED.search(path)
    }
    found |= {
        path: f"absent -> {_shown(new[path])}"
        for path in new
        if path not in old and not _ON_PURPOSE.search(path)
    }
    return dict(sorted(found.items(), key=lambda item: " column " not in item[0]))


def _without_added_columns(old: Leaves, new: Leaves) -> Leaves:
    """The new leaves without columns that were added on purpose."""
    added = tuple(f" column {name}" for name in ADDED_COLUMNS)
    kept = {path: value for path, value in new.items() if path in old or not path.endswith(added)}
    for path, names in new.items():
        if path.endswith("columns") and isinstance(names, list) and path in old:
            kept[path] = [x for x in names if x in old[path] or x not in ADDED_COLUMNS]
            if f"{path} length" in new:
                kept[f"{path} length"] -= len(names) - len(kept[path])
    return kept


def general(path: str) -> str:
    """A path without the indices of lists and the names of files."""
    short = re.sub(r"\[\d+\]", "[]", path)
    return re.sub(r"^(?:\S+\.(?:json|parquet|html)(?: metadata)?|stdout \d+)\.?", "", short)


def _is_rounding(old: Any, new: Any) -> bool:
    """Return whether two numbers differ in their last bits alone, or as sums of numbers near 1."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return all(map(_is_rounding, old, new))
    try:  # zeros are texts, so that their signs are compared
        return math.isclose(float(old), float(new), rel_tol=1e-12, abs_tol=1e-15)
    except (TypeError, ValueError):
        return False


def _differ(old: Any, new: Any) -> bool:
    return type(old) is not type(new) or old != new


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:97] + "..."


def fingerprint(leaves: Leaves) -> str:
    """One hash of everything that is compared of a case."""
    text = json.dumps(leaves, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
