"""What the fields of an undeclared layout are, proposed by names, types and values of a sample."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.containers import container_of
from rlpost.formats.records import Record, is_keyed
from rlpost.recipe.candidates import PROMPTS, worth
from rlpost.recipe.roles import kind_of, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rlpost.formats.base import ReadOptions

MOST_ROWS, MOST_FILES = 4096, 8
MOST_LISTED = 24  # fields in an error
MOST_SIZE = 4 << 20
"""Numbers and characters of a sample."""
LARGE = 128  # rows of one prompt, at most
_TRIED = 64  # rows whose lists of tokens are looked at, and a half of it records that have lists
_DEPTH = 3  # of objects in a record, and of lists in lists
_LEAST = 4.0  # what the name of a field is worth that serves a role
_WEAK = 6.0  # and that of a group whose keys may come again in another record
_ID = 8.5  # and that of a group which a few rows may lack
_PART = 3.0  # and that of a reward by a part of its name alone
_LIKELY = 0.05  # what rows are worth whose reward has a name of its own
_SHOWN = 24  # characters of an example
_AGGREGATE, _TURNS = 4.0, 6.0  # what a reward of a single record, and of other lists, is worth less
_ROW_LISTS = {"samples", "results", "rollouts", "responses", "trials", "simulations", "completions",
              "generations", "episodes", "records", "rows", "data", "outputs", "answers", "runs",
              "candidates", "attempts", "trajectories", "examples", "evals", "items", "groups",
              "rewards", "scores", "score", "reward", "tasks", "prompts", "problems", "questions",
              "datasets", "categories", "*"}  # fmt: skip
_OF_RESPONSES = {"response", "output", "completion", "result", "choices"}
_NO_REWARDS = re.compile(
    r"(^|_|\.)(id|idx|index|epoch|trial|seed|attempt|count|time|timestamp|"
    r"duration|latency|cost|tokens|length|version|rank|turns?|steps?)(_|$|s$)"
)
_NO_FAILURE = {"", "unset", "none", "null", "ok", "no", "success", "no_failure", "completed"}
_LISTS = ("mask", "old_log_probs", "infer_log_probs", "ref_log_probs", "response_token_ids")
_JUDGED = ("reward", "group", "truncated", "failure", "response", "response_length", "batch",
           "domain", *_LISTS, "prompt_token_ids")  # fmt: skip
"""Roles that are proposed, in the order in which they take fields."""
_TYPES: Mapping[str, set[type]] = {
    "number": {int, float, bool}, "flag": {bool, str}, "text": {str, list, dict},
    "group": {int, float, str, list, dict}, "batch": {int}, "domain": {str},
    "failure": {bool, str, dict}, "response_length": {int, float},
    "tokens": {list}, "ids": {list},
}  # fmt: skip
"""Role, or kind of role -> types of its values."""


@dataclass(frozen=True)
class Proposal:
    """Where the rows are, and the field of each role."""

    rows: str | None
    roles: Mapping[str, str]
    """Role -> field."""
    map: Mapping[str, str]
    """Role -> field where its name does not say it; `none` for a name that misleads."""
    group_size: int | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    """Field -> `score (number, 0.5: reward)`, for people; those with a likely role come first."""
    doubt: str = ""
    """Why the proposal is not sure."""
    inputs: Sequence[str] = ()
    """The paths of the dumps, or of their folder, and the name of their format, as stated."""
    source: str = ""

    @property
    def command(self) -> str:
        """The command that states it."""
        words = ["rlpost", "convert", *self.inputs, "OUT.parquet", "--from", self.source]
        words += ["--rows", self.rows] if self.rows else []
        words += [x for role, path in self.map.items() for x in ("--map", f"{role}={path}")]
        words += ["--group-size", str(self.group_size)] if self.group_size else []
        return shlex.join(words)

    def as_json(self) -> dict[str, Any]:
        """Return what is proposed, and the command that states it."""
        stated = {"rows": self.rows, "map": {**self.map}, "group_size": self.group_size}
        return {**stated, "roles": {**self.roles}, "text": self.text, "command": self.command}

    @property
    def lines(self) -> str:
        """What is proposed, and the command that states it, as two lines."""
        return f"as proposed: {self.text}\n  stated: {self.command}"

    def applied(self, options: ReadOptions) -> ReadOptions:
        """Return the options with what is proposed."""
        return replace(options, rows=self.rows, map=self.map, group_size=self.group_size)

    def fits(self, records: Sequence[Record]) -> bool:
        """Return whether records have the rows and the reward of the proposal."""
        with suppress(DataError):
            return self.roles.get("reward") in {None, *Table(records, self.rows).columns}
        return False

    @property
    def listed(self) -> str:
        """The fields, for an error."""
        texts = [*self.fields.values()]
        more = f" and {len(texts) - MOST_LISTED:,} more" if len(texts) > MOST_LISTED else ""
        return ", ".join(texts[:MOST_LISTED]) + more

    @property
    def text(self) -> str:
        """What is proposed, in a line."""
        where = f"rows are the items of `{self.rows}`" if self.rows else "a record is a response"
        roles = ", ".join(f"{role} = {path}" for role, path in self.roles.items())
        size = f", groups of {self.group_size} rows" if self.group_size else ""
        if "group" not in self.roles and not size:
            size = ", no group (--map group=FIELD or --group-size N)"
        return f"{where}, {roles}{size}"


def sample_of(paths: Sequence[Path], most: int = MOST_ROWS) -> list[Record]:
    """Return the first records of some of the files, of bounded number and size.

    Raises:
        DataError, ReadWriteError: as the container.
    """
    step = max(1, len(paths) // MOST_FILES)
    chosen, sample = paths[::step][:MOST_FILES], list[Record]()
    for path in chosen:
        container, size = container_of(path), 0
        for record in container.records(path) if container else ():
            sample.append(record)
            size += _size(record.fields)
            if len(sample) >= most or size >= MOST_SIZE // len(chosen):
                break
    return sample


def propose(records: Sequence[Record], options: ReadOptions) -> Proposal:
    """Return where the rows are and which field serves each role; `options` decide what they name.

    Args:
        records: the sample.
        options: `rows`, `group_size` and the roles of `map` are the user's.
    """
    if options.rows:
        return Table(records, options.rows).proposal(options)
    tables = [Table(records, None)]
    whole = ({"*": record.fields} for record in records if is_keyed(record.fields))
    fields = (record.fields for record in records)
    places = dict.fromkeys(path for part in (fields, whole) for values in islice(part, _TRIED // 2)
                           for path in _places(values))  # fmt: skip
    for place in places:
        with suppress(DataError):
            tables.append(Table(records, place))
    return max(tables, key=lambda table: table.worth(options)).proposal(options)


@dataclass
class Column:
    """The values of a field, in all rows."""

    path: str
    values: list[Any]
    outer: bool = False
    """It is of what contains the rows."""

    @cached_property
    def known(self) -> list[Any]:
        """The values that are not null."""
        return [value for value in self.values if value is not None]

    @cached_property
    def keys(self) -> list[bytes]:
        """A key of each value, equal for equal ones."""
        texts = (json.dumps(value, sort_keys=True, default=str) for value in self.values)
        return [text.encode(errors="surrogatepass") for text in texts]

    @cached_property
    def is_prompt(self) -> bool:
        """Whether its name is that of a prompt."""
        return (
            re.fullmatch(rf"({PROMPTS})(_text|s)?", self.path.rpartition(".")[2].lower())
            is not None
        )

    def denies(self, other: Column) -> bool:
        """Return whether some key of the other column has two values of this one."""
        first: dict[bytes, bytes] = {}
        rows = zip(other.values, other.keys, self.keys, strict=True)
        known = ((key, text) for value, key, text in rows if value is not None)
        return any(first.setdefault(key, text) != text for key, text in known)

    def worth(self, role: str) -> float:
        """Return what it is worth for a role, by its name, place and values; 0 if unfit."""
        value = worth(role, self.path)
        if role == "reward" and value < _PART and len({*self.keys}) < 2:  # noqa: PLR2004
            return 0.0
        return value - 0.25 * self.outer if value and self.known and self.fits(role) else 0.0

    def fits(self, role: str) -> bool:
        """Return whether the values can be those of a role."""
        known, rows, kind = self.known, len(self.values), kind_of(role)
        if not {*map(type, known)} <= _TYPES.get(role, _TYPES.get(kind, {str, list, dict})):
            return False
        good = True
        match role:
            case "reward":
                good = not self.outer and "std" not in self.path and 2 * len(known) > rows
            case "group":
                inside = {*self.path.split(".")[:-1]} & _OF_RESPONSES
                good = not inside and not any(x in ("", [], {}) for x in known)
            case "response_length":  # of an outer record, it is the sum of several responses
                good = not self.outer and all(x == x // 1 >= 0 for x in known) and any(known)
            case "failure":  # inside an object, why an answer is wrong
                usual, count = Counter(map(str, known)).most_common(1)[0]
                is_rare = 2 * count <= rows or usual.lower() not in _NO_FAILURE
                good = "." not in self.path and is_rare
            case "domain":
                good = 2 * len(known) > rows and len({*known}) <= max(8, rows // 4)
            case _ if kind in ("tokens", "ids"):
                numbers = [x for values in known[:_TRIED] for x in values]
                types = {*map(type, numbers)}
                good = types <= {int, float, type(None)} and float in types
                if kind == "ids" or role == "mask":
                    good = types <= {int, bool} and (kind == "ids" or {*numbers} <= {0, 1})
        return good


class Table:
    """The rows at one place of the records, and their fields by path.

    Raises:
        DataError: a record has no rows there.
    """

    def __init__(self, records: Sequence[Record], place: str | None) -> None:
        self.place, self.records = place, len(records)
        inside = (
            row for record in records for row in ([record] if place is None else record.rows(place))
        )
        self.rows = [*islice(inside, MOST_ROWS)]
        self.columns: dict[str, Column] = {}
        for number, row in enumerate(self.rows):
            record: Record | None = row
            while record is not None:
                outer = record is not row
                for path, value in _flat(record.fields):
                    hidden = self._is_rows(path) or path.partition(".")[0] in row.fields
                    if outer and hidden:
                        continue
                    if path not in self.columns:
                        self.columns[path] = Column(path, [None] * len(self.rows))
                    self.columns[path].values[number] = value
                    self.columns[path].outer |= outer
                record = record.outer

    def _is_rows(self, path: str) -> bool:
        """Return whether an outer field has the rows, or is on the way to them."""
        inner, outer = f"{self.place}.", f"{path}."
        return inner.startswith(outer) or outer.startswith(inner)

    def ranked(self, role: str) -> list[tuple[float, Column]]:
        """Return the columns that fit a role and what each is worth, the best first."""
        values = ((column.worth(role), column) for column in self.columns.values())
        return sorted(((x, y) for x, y in values if x), key=lambda x: -x[0])

    def worth(self, options: ReadOptions) -> float:
        """Return how likely the rows are here, by their reward."""
        names = (self.place or "").split(".")
        chosen = options.map.get("reward")
        if chosen is not None:
            return float(chosen in self.columns) - 0.01 * len(names)
        value = max((value for value, _ in self.ranked("reward")), default=0.0)
        likely = 0.0 if value or self._likely_reward() is None else _LIKELY
        if self.place is None:
            return value + likely - (_AGGREGATE if value and len(self.rows) == 1 else 0.0)
        others = sum(name not in _ROW_LISTS for name in names)
        if not value:  # where people look first
            first = self.records == 1 and not others and len(names) == 1
            return 0.1 if first else likely / (1 + len(names))
        return value - _TURNS * others - 0.1 * len(names)

    def proposal(self, options: ReadOptions) -> Proposal:
        """Return the fields of the roles, those of the user's map as they are."""
        known = {"none", *_with_objects(self.columns)}
        stated = {role: path for role, path in options.map.items() if path in known}
        roles = {role: path for role, path in stated.items() if path != "none"}
        doubt, size = "", options.group_size
        for role in _JUDGED:
            if role in stated or (role == "group" and size):
                continue
            free = [(x, y) for x, y in self.ranked(role) if y.path not in roles.values()]
            if role == "group":
                column = self._group([column for _, column in free])
            elif role == "reward":
                column, doubt = self._reward(free)
            else:
                column = next((column for value, column in free if value >= _LEAST), None)
            group = self.columns.get(roles.get("group", ""))
            if role == "domain" and column and group and column.denies(group):
                continue  # a group is of one domain
            if column is not None:
                roles[role] = column.path
        if "group" not in {*roles, *stated} and not size:
            size = self._block()
        if any(role in roles for role in _LISTS):
            roles.pop("response_length", None)
        tops = sorted({path.partition(".")[0] for path in self.columns})
        by_name = resolve(tops, {}, "").columns
        chosen = {role: path for role, path in roles.items() if by_name.get(role) != path}
        unset = {"group"} if size else set[str]()
        unset |= {"response_length"} if any(role in roles for role in _LISTS) else set()
        unset |= {x for x, path in by_name.items() if x not in _JUDGED and self._readable(x, path)}
        refused = {role: "none" for role in by_name if role not in {*roles, *stated, *unset}}
        facts = self._facts({path: role for role, path in roles.items()})
        return Proposal(self.place, roles, {**stated, **chosen, **refused}, size, facts, doubt)

    def _readable(self, role: str, path: str) -> bool:
        """Return whether a role that a name alone gives can be read of a field."""
        types = {*map(type, self.columns[path].known)} if path in self.columns else set[type]()
        unfit: dict[str, set[type]] = {"number": {str, dict}, "tokens": {str, dict, int, float}}
        return types.isdisjoint(unfit.get(kind_of(role), {list, dict}))

    def _reward(self, ranked: Sequence[tuple[float, Column]]) -> tuple[Column | None, str]:
        """Return the column of the reward, and why that is not sure."""
        if not ranked:
            return self._likely_reward(), "no field looks like a reward"
        (best, first), *others = ranked
        rivals = [x.path for value, x in others if value == best and x.values != first.values]
        if rivals:
            return first, f"{' and '.join([first.path, *rivals])} look like rewards alike"
        if best < _PART and others:
            return first, f"{first.path} may be a reward"
        return first, ""

    def _likely_reward(self) -> Column | None:
        """Return a column of numbers that could be a reward, whatever its name."""
        return next((column for path, column in self.columns.items()
                     if not _NO_REWARDS.search(path.lower()) and column.fits("reward")
                     and len({*map(repr, column.known)}) > 1), None)  # fmt: skip

    def _group(self, columns: Sequence[Column]) -> Column | None:
        """Return the column of the group.

        It is the likeliest that several rows share and no prompt denies, or else the prompt.
        """
        prompts = [column for column in columns if column.is_prompt]
        shared = [x for x in prompts if max(Counter(x.keys).values()) > 1]
        ranked: dict[str, Column] = {}
        for column in columns:
            sizes, known = Counter(column.keys), len(column.known)
            is_id = worth("group", column.path) > _ID and 2 * known > len(self.rows)
            if (known < len(self.rows) and not is_id) or self._merges(column):
                continue
            if max(sizes.values()) < 2:  # noqa: PLR2004
                kind = "alone"
            elif column in prompts:
                kind = "prompt" if len(sizes) == 1 and len(self.rows) < LARGE else "shared"
                kind = "one" if len(sizes) == 1 and kind == "shared" else kind
            elif shared and shared[0].denies(column):
                continue
            else:
                kind = "shared" if len(sizes) > 1 else "one"
            ranked.setdefault(kind, column)
        order = ("shared", "prompt", "alone", "one")
        return next((ranked[kind] for kind in order if kind in ranked), None)

    def _merges(self, column: Column) -> bool:
        """Return whether a column of a weak name puts the rows of several records in a group."""
        if not column.outer or column.is_prompt or worth("group", column.path) > _WEAK:
            return False
        first: dict[bytes, int] = {}
        pairs = zip(column.keys, self.rows, strict=True)
        again = any(first.setdefault(key, id(row.outer)) != id(row.outer) for key, row in pairs)
        return again and self._block() is not None

    def _block(self) -> int | None:
        """Return the number of rows in each record, if it is the same in all, and more than one."""
        if self.place is None or self.records < 2:  # noqa: PLR2004
            return None
        sizes = {*Counter(id(row.outer) for row in self.rows).values()}
        return sizes.pop() if len(sizes) == 1 and sizes != {1} else None

    def _facts(self, taken: Mapping[str, str]) -> dict[str, str]:
        facts = []
        for path, column in self.columns.items():
            likely = max(_JUDGED, key=column.worth)
            role = taken.get(path) or (likely if column.worth(likely) else "")
            first = next(iter(column.known), None)
            text = f"{path} ({_type(first)}, {_example(first)}{role and f': {role}'})"
            facts.append((not role, path, text))
        return {path: text for _, path, text in sorted(facts, key=lambda fact: fact[0])}


def _with_objects(paths: Iterable[str]) -> frozenset[str]:
    """Return dotted paths, and those of the objects that they are in."""
    parts = (path.split(".") for path in paths)
    return frozenset(".".join(x[:n]) for x in parts for n in range(1, len(x) + 1))


def field_paths(records: Sequence[Record], rows: str | None) -> frozenset[str]:
    """Return the fields of the rows of records, and the objects that they are in."""
    return _with_objects(Table(records, rows).columns)


def _flat(
    fields: Mapping[str, Any], path: str = "", depth: int = _DEPTH
) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a record by dotted path, those of objects in place of the objects."""
    for name, value in fields.items():
        if isinstance(value, dict) and value and depth:
            yield from _flat(value, f"{path}{name}.", depth - 1)
        else:
            yield f"{path}{name}", value


def _places(fields: Mapping[str, Any], depth: int = _DEPTH) -> Iterator[str]:
    """Yield the paths of lists in a record whose items may be responses."""
    for name, value in fields.items():
        objects = isinstance(value, list) and value and all(isinstance(x, dict) for x in value)
        keyed = is_keyed(value)
        if keyed or objects or _is_column(name, value, fields):
            yield name
        inner = next(iter(value.values())) if keyed else value[0] if objects else value
        if isinstance(inner, dict) and depth:
            yield from (f"{name}.{path}" for path in _places(inner, depth - 1))


def _is_column(name: str, value: Any, fields: Mapping[str, Any]) -> bool:
    """Return whether a list has the rewards of responses that lists beside it have."""
    if not isinstance(value, list) or not value or worth("reward", name) < 5:  # noqa: PLR2004
        return False
    beside = (x for key, x in fields.items() if key != name and isinstance(x, list))
    others = any(isinstance(x[0], (str, list, dict)) for x in beside if len(x) == len(value))
    return others and all(isinstance(x, (int, float)) for x in value)


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list) and value and isinstance(value[0], (dict, list, str)):
        return sum(map(_size, value))
    return len(value) if isinstance(value, (str, list)) else 1


def _type(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {_type(value[0])}s" if value else "list"
    names = {bool: "bool", int: "integer", float: "number", str: "text", dict: "object"}
    return names.get(type(value), "null")


def _example(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
