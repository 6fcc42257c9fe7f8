"""The two forms of data: Responses, one row for each response; Batch, the tokens of some responses.

`Collector` builds the table of all responses from the chunks of the first pass.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.io.keys import KeyColumn, encode_keys, name_ranks, step_order
from rlpost.io.memory_limit import KeptMemory
from rlpost.kernels.arrays import Array, is_tensor, namespace
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.rewards import component_sum
from rlpost.kernels.segments import count_true, lengths, spread
from rlpost.pipeline.totals import SummaryCells
from rlpost.pipeline.turns import ROLLOUT, TURN, turn_evidence
from rlpost.recipe.roles import is_component, is_nullable, is_read_by_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.pipeline.device import Device
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import Unit


Column = np.ndarray[Any, np.dtype[Any]]
"""A column of responses, [N] or [N, k]."""
TRUNCATED = "truncated"
"""The role, and the column of Responses, of responses that a limit cut off."""
NO_REWARD = "no_reward"
"""The column of Responses that is true for rows whose reward is null, if rollouts count."""
FAILURE, ATTEMPTS = "failure", ("run_attempt", "attempt")
"""The roles of why a response failed, and of the attempts of the run and of its rollout."""
RETRIED = "retried"
"""The column with the code of the rollout whose attempts are counted."""
AGENT_ROLE = "agent_role"
"""The role, and the column of Responses, of the agent whose policy sampled a row."""
LEFT_OUT = ("sample_mask", "superseded", "failure")
"""Why a response is left out of statistics and training, besides a number that is not finite."""
NEXT_VALUE = "next_value"
"""The role, and the column of Responses, of values behind the end of truncated responses."""
UNKNOWN_REASON = "unknown_reason"
"""The column of Responses with codes of finish reasons that are not known; that of "" is for the
known ones."""


@dataclass(frozen=True)
class Responses:
    """One row per response of the whole input, in input order: arrays of numpy on every device.

    `columns` are [N]: numbers float64, codes int64, flags bool. Every input has `reward` (raw),
    `tokens` (with mask = 1), `length` (all tokens), `batch`, `group`, `domain` (codes) and `valid`,
    false for responses that are left out: a number is not finite, or `left_out` is not 0. That is
    1 + the first reason of `LEFT_OUT`. `cell` is that of its step and domain, `key` that of its
    totals: the cell, and the number of its file times that of cells. `turn_evidence` is what the
    function of that name in `rlpost.pipeline.turns` returns.
    """

    columns: Mapping[str, Column]
    labels: Mapping[str, list[str | int]] = field(default_factory=dict)
    """The labels of the codes of `step`, `batch`, `domain`, `unknown_reason` and `failure`."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Results of stages that are not columns."""
    shared: Mapping[str, Column] = field(default_factory=dict)
    """Numbers that all batches use."""
    cells: SummaryCells = field(default_factory=SummaryCells)
    """Those of the column `cell`."""

    def __len__(self) -> int:
        return len(self.columns["reward"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def with_(self, **columns: Column) -> Responses:
        """Return the same responses with columns added or replaced."""
        return replace(self, columns={**self.columns, **columns})

    def noting(self, **notes: Any) -> Responses:
        """Return the same responses with notes added."""
        return replace(self, notes={**self.notes, **notes})

    def sharing(self, **shared: Column) -> Responses:
        """Return the same responses with shared numbers added."""
        return replace(self, shared={**self.shared, **shared})

    def leaving_out(self, flags: Column, reason: str) -> Responses:
        """Return the same responses; those with a flag are left out, for a reason of `LEFT_OUT`."""
        valid, left_out = self["valid"] & ~flags, self["left_out"].copy()
        left_out[flags & (left_out == 0)] = LEFT_OUT.index(reason) + 1
        return self.with_(left_out=left_out, valid=valid, kept=valid)

    def count(self, name: str) -> int:
        """Return the number of codes of a column."""
        if name in self.labels:
            return len(self.labels[name])
        return int(self[name].max()) + 1 if len(self) else 0

    def label_counts(self, name: str) -> Counter[str]:
        """Return how many responses have each label that is not empty; none without the column."""
        if name not in self:
            return Counter()
        labels = self.labels[name]
        counts = np.bincount(self[name], minlength=len(labels)).tolist()
        return Counter({str(x): n for x, n in zip(labels, counts, strict=True) if x and n})

    def rows(self, start: int, stop: int) -> Responses:
        """Return consecutive rows, which share memory with the table; equal columns are one."""
        parts = {id(value): value[start:stop] for value in self.columns.values()}
        columns = {key: parts[id(value)] for key, value in self.columns.items()}
        return replace(self, columns=columns)


@dataclass(frozen=True)
class Batch:
    """The tokens of consecutive responses, ragged: arrays of numpy, or of torch on a device.

    Columns of `tokens` are [T]. Columns of `responses` and `table` are [n]: the rows of these
    responses, once the table exists.
    """

    offsets: Array
    mask: Array
    """[T] bool: true for policy tokens."""
    tokens: Mapping[str, Array]
    responses: Mapping[str, Array] = field(default_factory=dict)
    """On the device, for computations with tokens."""
    table: Mapping[str, Column] = field(default_factory=dict)
    """The same columns of numpy, for decisions and for numbers of responses alone."""
    shared: Mapping[str, Array] = field(default_factory=dict)
    full: bool = False
    """There is no observation: the mask is true for all tokens."""

    @property
    def xp(self) -> ModuleType:
        """The functions for its arrays."""
        return namespace(self.mask)

    def only(self, values: Array) -> Array:
        """Return the values at policy tokens, 0 at observations."""
        return values if self.full else self.xp.where(self.mask, values, 0.0)

    @property
    def lengths(self) -> Array:
        """Tokens of each response, [n] int64."""
        return lengths(self.offsets)

    @property
    def policy_tokens(self) -> Array:
        """Policy tokens of each response, [n] int64."""
        return self.lengths if self.full else count_true(self.mask, self.offsets)

    def __getitem__(self, name: str) -> Array:
        return self.tokens[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tokens

    def with_(self, **tokens: Array) -> Batch:
        """Return the same batch with token columns added or replaced."""
        return replace(self, tokens={**self.tokens, **tokens})

    def all_are(self, name: str) -> bool:
        """Return whether a flag of the table is true for all responses."""
        return bool(self.table[name].all())

    def with_responses(self, columns: Mapping[str, Array]) -> Batch:
        """Return the same batch with columns of responses added, which are on its device."""
        return replace(self, responses=ChainMap({**columns}, {}, self.responses))  # type: ignore[arg-type]

    def without_left_out(self) -> Batch:
        """Return the batch with 0 for the tokens of responses that are left out, NaN or not."""
        if self.all_are("valid"):
            return self
        xp, inside = self.xp, spread(self.responses["valid"], self.offsets)
        columns = self.tokens.items()
        return self.with_(**{name: xp.where(inside, x, xp.zeros((), x)) for name, x in columns})

    def beside(self, responses: Responses, start: int, device: Device) -> Batch:
        """Return the batch with its rows of the table, which begin at `start`."""
        table = responses.rows(start, start + len(self.offsets) - 1).columns
        if not is_tensor(self.offsets):
            return replace(self, responses=table, table=table, shared=responses.shared)
        return replace(
            self, responses=device.rows(table), table=table, shared=device.shared(responses.shared)
        )


def concat_columns(parts: Iterable[Mapping[str, Column]], rows: int) -> dict[str, Column]:
    """Return the columns of consecutive chunks, [rows] each.

    Each chunk is copied at once. If all were kept until the last one, many small arrays would
    fragment the memory that chunks free, and memory would grow with the input.
    """
    columns: dict[str, Column] = {}
    first = 0
    for part in parts:
        for name, value in part.items():
            column = columns.setdefault(name, np.empty(rows, value.dtype))
            column[first : first + len(value)] = value
        first += max(map(len, part.values()), default=0)
    assert not columns or first == rows, f"{first} rows, not {rows}"
    return columns


Label = str | int


_COPIES = 7  # of what chunks add to the table: it is joined and sorted, and stages add columns
_LABELLED = ("batch", "domain", "branch", UNKNOWN_REASON, FAILURE)
"""Keys whose labels are kept; there may be millions of groups and rollouts."""


class Collector:
    """Collects the columns of responses from chunks, in input order.

    Args:
        rows: the number of all responses.
        of_label: bytes that each step and each domain needs later.
    """

    def __init__(self, rows: int, of_label: int = 0) -> None:
        self._of_label = of_label // _COPIES
        self._labels = dict[str, set[Label]]()
        self._numbers: list[dict[str, Column]] = []
        self._keys: dict[str, list[pa.DictionaryArray]] = {}
        self._kept = KeptMemory("the table of all responses", _COPIES, rows)

    def add(self, rows: Mapping[str, Column | pa.Array], mapped: Mapping[str, Column]) -> None:
        """Add the next chunk: its keys and numbers, and the numbers that stages mapped."""
        numbers = {name: value for name, value in rows.items() if isinstance(value, np.ndarray)}
        self._numbers.append({**numbers, **mapped})
        size = sum(column.nbytes for column in self._numbers[-1].values())
        for name, value in rows.items():
            if not isinstance(value, np.ndarray):
                keys = encode_keys(value)
                size += keys.nbytes
                if self._of_label and name in ("batch", "domain"):
                    labels = self._labels.setdefault(name, set())
                    before = len(labels)
                    labels.update(keys.dictionary.to_pylist())
                    size += self._of_label * (len(labels) - before)
                self._keys.setdefault(name, []).append(keys)
        self._kept.add(size, max(map(len, rows.values()), default=0))

    def finish(self, recipe: Recipe, unit: Unit) -> Responses:
        """Return the table, with codes instead of keys; it needs at least one row, and one call.

        If rollouts count, `unit` has the code of each row's rollout.

        Collected chunks are freed while the table grows, since there may be millions of rows.
        """
        parts, self._numbers = self._numbers, []
        columns = {name: np.concatenate([one.pop(name) for one in parts]) for name in [*parts[0]]}
        if np.array_equal(columns["tokens"], columns["length"]):
            columns["tokens"] = columns["length"]
        weights = recipe.component_weight
        if weights:
            components = np.stack([columns[f"component:{name}"] for name in weights], axis=1)
            scale = np.array(list(weights.values()), np.float64)
            columns["reward"] = component_sum(components, scale)
        count = len(columns["tokens"])
        columns.setdefault("reward", np.zeros(count))  # which nothing reads
        one = np.zeros(count, np.int64)
        codes: dict[str, Column] = {}
        labels: dict[str, list[Label]] = {}
        for name in list(self._keys):
            keys = KeyColumn.of(self._keys.pop(name))
            codes[name] = keys.codes
            if name in _LABELLED:
                labels[name] = keys.labels.to_pylist()
        retried = _separate_attempts(codes, columns)
        step, steps = _step_codes(codes.get("batch", one), labels.get("batch", ["all"]))
        domain, domains = codes.get("domain", one), labels.get("domain", ["all"])
        batch, batches = _batches(recipe.numerics.batch, step, steps, domain, domains)
        by_rollout = unit == "rollout" and "rollout" in codes  # no statistic may need them
        alone = codes["rollout"] if by_rollout else np.arange(count)
        own = codes.get("group", alone)
        finite = _finite(columns, count, skip=recipe.numerics.missing_components == "skip")
        left_out = np.zeros(count, np.int8)
        if "sample_mask" in columns:
            left_out[columns.pop("sample_mask") == 0] = LEFT_OUT.index("sample_mask") + 1
        valid = finite & (left_out == 0)
        columns |= {
            "reward": np.where(finite, columns["reward"], 0.0),
            "left_out": left_out,
            "valid": valid,
            "kept": valid,
            "step": step,
            "batch": batch,
            "domain": domain,
            "group": joint_codes(batch, own),
        }
        columns |= {name: joint_codes(columns["group"], code) for name, code in retried.items()}
        cells, columns["cell"] = SummaryCells.of(step, steps, domain, domains)
        if "branch" in codes:  # in the order of their names
            codes["branch"] = name_ranks(labels.pop("branch"))[codes["branch"]]
        ids = {"rollout", "branch", AGENT_ROLE, "state_id", UNKNOWN_REASON, FAILURE}
        columns |= {n: code for n, code in codes.items() if n in ids or is_read_by_name(n)}
        if len(batches) > 1 and "rollout" in codes:
            columns["prompt"] = own
        if by_rollout:
            columns["unit"] = joint_codes(columns["group"], codes["rollout"])
        others = {name: labels[name] for name in (UNKNOWN_REASON, FAILURE) if name in labels}
        labels = {"step": steps, "batch": batches, "domain": domains} | others
        rollout, turn = codes.get(ROLLOUT), columns.pop(TURN, None)
        if rollout is not None or turn is not None:
            columns["turn_evidence"] = turn_evidence(columns["group"], rollout, turn)
        notes = {"prompts": int(codes["group"].max(initial=-1)) + 1} if "group" in codes else {}
        return Responses(columns, labels, notes, cells=cells)


def _separate_attempts(
    codes: dict[str, Column], columns: Mapping[str, Column]
) -> dict[str, Column]:
    """Make each attempt of a rollout a rollout; return the codes [N] that its attempts share."""
    shared = {}
    for name in ATTEMPTS if "rollout" in codes else ():
        if name in columns:
            shared = {RETRIED: codes["rollout"]} if name != ATTEMPTS[0] else {}
            attempts = np.unique(columns[name], return_inverse=True)[1]
            codes["rollout"] = joint_codes(codes["rollout"], attempts)
    return shared


def _finite(columns: Mapping[str, Column], count: int, *, skip: bool) -> NDArray[np.bool_]:
    """Return whether all numbers of each row are finite (always, with `--nonfinite error`).

    Args:
        columns: [count] or [count, k] each.
        count: rows.
        skip: leave components of the reward out.
    """
    finite = np.ones(count, np.bool_)
    for name, column in columns.items():
        if column.dtype.kind == "f" and not (skip and is_component(name)):
            counted = ~np.isinf(column) if is_nullable(name) else np.isfinite(column)
            finite &= counted if counted.ndim == 1 else counted.all(1)
    return finite


def _step_codes(codes: Column, labels: list[Label]) -> tuple[Column, list[Label]]:
    """Return codes of steps in step order, and their labels."""
    order = step_order(labels)
    if order == [*range(len(labels))]:
        return codes, labels
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels))
    return rank[codes], [labels[index] for index in order]


def _batches(
    scope: str, step: Column, steps: list[Label], domain: Column, domains: list[Label]
) -> tuple[Column, list[Label]]:
    """Return codes of batches, by the scope in the recipe's numerics, and their labels."""
    if scope == "all":
        return np.zeros_like(step), ["all"]
    if scope == "step":
        return step, steps
    cells, codes = SummaryCells.of(step, steps, domain, domains)
    return codes, ["/".join(names) for names in cells.names(range(len(cells.pairs)))]
