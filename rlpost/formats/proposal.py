"""What the fields of an undeclared layout are, proposed by names, types and values of a sample."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from rlpost.errors import DataError
from rlpost.formats.containers import container_of
from rlpost.formats.records import Record, is_keyed
from rlpost.recipe.candidates import PROMPTS, worth
from rlpost.recipe.roles import kind_of, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rlpost.formats.base import ReadOptions

    Columns = Mapping[str, list[Any]]

MOST_ROWS, MOST_FILES = 4096, 8
MOST_LISTED = 24  # fields in an error
MOST_SIZE = 4 << 20
"""Numbers and characters of a sample."""
LARGE = 128  # rows of one prompt, at most
_TRIED = 64  # rows whose lists of tokens are looked at
_DEPTH = 3  # of objects in a record, and of lists in lists
_LEAST = 4.0  # what the name of a field is worth that serves a role
_WEAK = 6.0  # and that of a group whose keys may come again in another record
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
_JUDGED = ("reward", "group", "truncated", "failure", "response", "response_length", "batch",
           "domain", "mask", "old_log_probs", "infer_log_probs", "ref_log_probs",
           "response_token_ids", "prompt_token_ids")  # fmt: skip
"""Roles that are proposed, in the order in which they take fields."""
_LISTS = ("mask", "old_log_probs", "infer_log_probs", "ref_log_probs", "response_token_ids")


class FieldFacts(NamedTuple):
    """A field of the rows, for people."""

    path: str
    type: str
    example: str
    role: str
    """The likeliest; empty if none is likely."""

    def __str__(self) -> str:
        """Return `score (number, 0.5: reward)`."""
        return f"{self.path} ({self.type}, {self.example}{self.role and f': {self.role}'})"


@dataclass(frozen=True)
class Proposal:
    """Where the rows are, and the field of each role."""

    rows: str | None
    roles: Mapping[str, str]
    """Role -> field."""
    map: Mapping[str, str]
    """Role -> field where its name does not say it; `none` for a name that misleads."""
    group_size: int | None = None
    fields: Sequence[FieldFacts] = ()
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
        try:
            return self.roles.get("reward") in {None, *Table.of(records, self.rows).columns}
        except DataError:
            return False

    @property
    def listed(self) -> str:
        """The fields, those with a role first."""
        order = sorted(self.fields, key=lambda field: not field.role)
        more = f" and {len(order) - MOST_LISTED:,} more" if len(order) > MOST_LISTED else ""
        return ", ".join(map(str, order[:MOST_LISTED])) + more

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
        return Table.of(records, options.rows).proposal(options)
    tables = [Table.of(records, None)]
    for place in _lists_within(records):
        with suppress(DataError):
            tables.append(Table.of(records, place))
    return max(tables, key=lambda table: table.worth(options)).proposal(options)


@dataclass
class Table:
    """The rows at one place of the records, and their fields by path."""

    place: str | None
    rows: list[Record]
    columns: dict[str, list[Any]]
    outer: set[str]
    """The fields that are of what contains the rows."""
    records: int = 0
    _ranked: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Sequence[Record], place: str | None) -> Table:
        """Return the table of a place; raise DataError if a record has no rows there."""
        inside = (
            row for record in records for row in ([record] if place is None else record.rows(place))
        )
        rows = [*islice(inside, MOST_ROWS)]
        columns: dict[str, list[Any]] = defaultdict(lambda: [None] * len(rows))
        outer: set[str] = set()
        for number, row in enumerate(rows):
            for path, value in _flat(row.fields):
                columns[path][number] = value
            inner, above = {*row.fields}, row.outer
            while above is not None:
                for path, value in _flat(above.fields):
                    outer_path, rows_path = f"{path}.", f"{place}."
                    is_rows = rows_path.startswith(outer_path) or outer_path.startswith(rows_path)
                    if path.partition(".")[0] not in inner and not is_rows:
                        columns[path][number] = value
                        outer.add(path)
                above = above.outer
        return cls(place, rows, dict(columns), outer, len(records))

    def ranked(self, role: str) -> list[tuple[float, str]]:
        """Return the fields that fit a role and what each is worth, the best first."""
        if role not in self._ranked:
            values = ((self._worth(role, path), path) for path in self.columns)
            self._ranked[role] = sorted(((x, y) for x, y in values if x), key=lambda x: -x[0])
        return self._ranked[role]

    def _worth(self, role: str, path: str) -> float:
        """Return what a field is worth for a role, by its name, place and values; 0 if unfit."""
        value, values = worth(role, path), self.columns[path]
        known = [x for x in values if x is not None]
        if not value or not known or not _fits(role, known, len(self.rows)):
            return 0.0
        constant = value < 3 and len({*map(_key, known)}) < 2  # noqa: PLR2004
        unfit = {  # of the group; of the answer, or an empty prompt; why an answer is wrong
            "reward": path in self.outer or "std" in path or constant,
            "group": {*path.split(".")[:-1]} & _OF_RESPONSES
            or any(x in ("", [], {}) for x in known),
            "failure": "." in path,
            "response_length": path in self.outer,  # the sum of several responses
        }
        return 0.0 if unfit.get(role) else value - 0.25 * (path in self.outer)

    def worth(self, options: ReadOptions) -> float:
        """Return how likely the rows are here, by their reward."""
        chosen = options.map.get("reward")
        if chosen is not None:
            return float(chosen in self.columns) - 0.01 * len((self.place or "").split("."))
        value, _ = next(iter(self.ranked("reward")), (0.0, ""))
        likely = 0.0 if value or self._likely_reward() is None else _LIKELY
        if self.place is None:
            return value + likely - (_AGGREGATE if value and len(self.rows) == 1 else 0.0)
        names = self.place.split(".")
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
            names = [path for _, path in self.ranked(role) if path not in roles.values()]
            if role == "group":
                path = self._group(names)
            elif role == "reward":
                path, doubt = self._reward(names)
            else:
                path = next((x for x in names if self._worth(role, x) >= _LEAST), None)
            if role == "domain" and path and self._denied(roles.get("group", path), path):
                path = None  # a group is of one domain
            if path is not None:
                roles[role] = path
        if "group" not in {*roles, *stated} and not size:
            size = self._block()
        if any(role in roles for role in _LISTS):
            roles.pop("response_length", None)
        by_name = self._by_name()
        chosen = {role: path for role, path in roles.items() if by_name.get(role) != path}
        unset = {"group"} if size else set[str]()
        unset |= {"response_length"} if any(x in roles for x in _LISTS) else set()
        unset |= {x for x, path in by_name.items() if x not in _JUDGED and self._readable(x, path)}
        refused = {role: "none" for role in by_name if role not in {*roles, *stated, *unset}}
        mapped = {**stated, **chosen, **refused}
        return Proposal(self.place, roles, mapped, size, self._facts(roles), doubt)

    def _readable(self, role: str, path: str) -> bool:
        """Return whether a role that a name alone gives can be read of a field."""
        types = {type(x) for x in self.columns.get(path, ()) if x is not None}
        unfit: dict[str, set[type]] = {"number": {str, dict}, "tokens": {str, dict, int, float}}
        return types.isdisjoint(unfit.get(kind_of(role), {list, dict}))

    def _by_name(self) -> dict[str, str]:
        """Return the roles that fields get by their names alone."""
        return resolve(sorted({x.partition(".")[0] for x in self.columns}), {}, "").columns

    def _reward(self, names: list[str]) -> tuple[str | None, str]:
        """Return the field of the reward, and why that is not sure."""
        ranks = {path: value for value, path in self.ranked("reward")}
        if not names:
            return self._likely_reward(), "no field looks like a reward"
        first, *others = names
        alike = [x for x in others if ranks[x] == ranks[first]]
        rivals = [x for x in alike if self.columns[x] != self.columns[first]]
        if rivals:
            return first, f"{' and '.join([first, *rivals])} look like rewards alike"
        if ranks[first] <= 2 and len(others):  # noqa: PLR2004 - by a part of the name alone
            return first, f"{first} may be a reward"
        return first, ""

    def _likely_reward(self) -> str | None:
        """Return a field of numbers that could be a reward, whatever its name."""
        for path, values in self.columns.items():
            known = [x for x in values if x is not None]
            several = len({*map(repr, known)}) > 1
            inner = path not in self.outer and not _NO_REWARDS.search(path.lower())
            if inner and several and _fits("reward", known, len(self.rows)):
                return path
        return None

    def _group(self, names: list[str]) -> str | None:
        """Return the field of the group.

        It is the likeliest that several rows share and no prompt denies, or else the prompt.
        """
        prompts = [path for path in names if _is_prompt(path)]
        shared = [path for path in prompts if max(self._sizes(path).values()) > 1]
        ranked = dict.fromkeys(("shared", "prompt", "alone", "one"), "")
        for path in names:
            sizes = self._sizes(path)
            if any(x is None for x in self.columns[path]) or self._merges(path):
                continue
            kind = "shared" if len(sizes) > 1 else "one"
            if max(sizes.values()) < 2:  # noqa: PLR2004
                kind = "alone"
            elif path in prompts:
                kind = "prompt" if kind == "one" and len(self.rows) < LARGE else kind
            elif shared and self._denied(path, shared[0]):
                continue
            ranked[kind] = ranked[kind] or path
        return next(filter(None, ranked.values()), None)

    def _sizes(self, path: str) -> Counter[bytes]:
        return Counter(self._keys(path))

    def _keys(self, path: str) -> list[bytes]:
        return [_key(value) for value in self.columns[path]]

    def _denied(self, path: str, other: str) -> bool:
        """Return whether some key of a field has two values of another one."""
        first: dict[bytes, bytes] = {}
        pairs = zip(self._keys(path), self._keys(other), strict=True)
        return any(first.setdefault(key, text) != text for key, text in pairs)

    def _merges(self, path: str) -> bool:
        """Return whether a field of a weak name puts the rows of several records in a group."""
        if path not in self.outer or _is_prompt(path) or worth("group", path) > _WEAK:
            return False
        first: dict[bytes, int] = {}
        pairs = zip(self._keys(path), self.rows, strict=True)
        again = any(first.setdefault(key, id(row.outer)) != id(row.outer) for key, row in pairs)
        return again and self._block() is not None

    def _block(self) -> int | None:
        """Return the number of rows in each record, if it is the same in all, and more than one."""
        if self.place is None or self.records < 2:  # noqa: PLR2004
            return None
        sizes = {*Counter(id(row.outer) for row in self.rows).values()}
        return sizes.pop() if len(sizes) == 1 and sizes != {1} else None

    def _facts(self, roles: Mapping[str, str]) -> list[FieldFacts]:
        taken = {path: role for role, path in roles.items()}
        facts = []
        for path, values in self.columns.items():
            first = next((x for x in values if x is not None), None)
            likely = max(_JUDGED, key=lambda role: self._worth(role, path))
            role = taken.get(path) or (likely if self._worth(likely, path) else "")
            facts.append(FieldFacts(path, _type(first), _example(first), role))
        return facts


def _fits(role: str, known: Sequence[Any], rows: int) -> bool:
    """Return whether the values of a field, without nulls, can be those of a role."""
    kind, types = kind_of(role), {*map(type, known)}
    if role == "response_length":
        return types <= {int, float} and all(x == x // 1 >= 0 for x in known) and any(known)
    if role == "failure":
        usual, count = Counter(map(str, known)).most_common(1)[0]
        return types <= {bool, str, dict} and (
            2 * count <= rows or usual.lower() not in _NO_FAILURE
        )
    if kind in ("tokens", "ids"):
        numbers = [x for values in known[:_TRIED] if type(values) is list for x in values]
        inner, integers = {*map(type, numbers)}, kind == "ids" or role == "mask"
        allowed = {int, bool} if integers else {int, float, type(None)}
        binary = role != "mask" or {*numbers} <= {0, 1}
        return types == {list} and inner <= allowed and (binary if integers else float in inner)
    of_kind: dict[str, set[type]] = {
        "number": {int, float, bool},
        "flag": {bool, str},
        "group": {int, float, str, list, dict},
        "batch": {int},
        "domain": {str},
    }
    if role == "domain" and (len(known) < rows or len({*map(str, known)}) > max(8, rows // 4)):
        return False
    if role == "reward" and 2 * len(known) <= rows:
        return False
    return types <= of_kind.get(role, of_kind.get(kind, {str, list, dict}))


def _with_objects(paths: Iterable[str]) -> frozenset[str]:
    """Return dotted paths, and those of the objects that they are in."""
    parts = (path.split(".") for path in paths)
    return frozenset(".".join(x[:n]) for x in parts for n in range(1, len(x) + 1))


def field_paths(records: Sequence[Record], rows: str | None) -> frozenset[str]:
    """Return the fields of the rows of records, and the objects that they are in."""
    return _with_objects(Table.of(records, rows).columns)


def _is_prompt(path: str) -> bool:
    last = path.rpartition(".")[2].lower()
    return any(last in (word, f"{word}_text", f"{word}s") for word in PROMPTS.split("|"))


def _flat(
    fields: Mapping[str, Any], path: str = "", depth: int = _DEPTH
) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a record by dotted path, those of objects in place of the objects."""
    for name, value in fields.items():
        if isinstance(value, dict) and value and depth:
            yield from _flat(value, f"{path}{name}.", depth - 1)
        else:
            yield f"{path}{name}", value


def _lists_within(records: Sequence[Record]) -> list[str]:
    """Return the paths of lists in records whose items may be responses."""
    paths: dict[str, None] = {}
    for record in records[:32]:
        whole = {"*": record.fields} if is_keyed(record.fields) else {}
        for path in (*_paths(record.fields, _DEPTH), *_paths(whole, _DEPTH)):
            paths.setdefault(path)
    return [*paths]


def _paths(fields: Mapping[str, Any], depth: int) -> Iterator[str]:
    for name, value in fields.items():
        if is_keyed(value):
            yield name
            first = next(iter(value.values()))
            yield from (f"{name}.{path}" for path in _paths(first, depth - 1) if depth)
        elif isinstance(value, dict) and depth:
            yield from (f"{name}.{path}" for path in _paths(value, depth - 1))
        elif isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
            yield name
            if depth:
                yield from (f"{name}.{path}" for path in _paths(value[0], depth - 1))
        elif isinstance(value, list) and value and _is_column(name, value, fields):
            yield name


def _is_column(name: str, value: list[Any], fields: Mapping[str, Any]) -> bool:
    """Return whether a list has the rewards of responses that lists beside it have."""
    if worth("reward", name) < 5 or not all(isinstance(x, (int, float)) for x in value):  # noqa: PLR2004
        return False
    beside = (x for key, x in fields.items() if key != name and isinstance(x, list))
    return any(isinstance(x[0], (str, list, dict)) for x in beside if len(x) == len(value))


def _key(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode(errors="surrogatepass")


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
