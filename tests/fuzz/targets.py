"""Fuzz targets: each input must cause an RlpostError, or a correct result.

A target takes bytes and returns the name of the outcome. It raises `WrongError` for a wrong result,
and any unexpected exception of rlpost. Its files are in a temporary folder, empty after each input.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import tomllib
import zlib
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzz import mutate, seeds
from runs import run
from typer.main import get_command

from rlpost import api
from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.loss.run import loss
from rlpost.analysis.verify import verify
from rlpost.cli.app import COMMANDS, app_of
from rlpost.errors import DataError, RlpostError
from rlpost.formats.base import TOKEN_COLUMNS, ReadOptions
from rlpost.formats.convert import convert
from rlpost.io.parquet.checks import read_metadata
from rlpost.io.parquet.footer import FOOTER, FooterError, decode, encode
from rlpost.io.parquet.sink import open_sink
from rlpost.recipe.recipe import EXTRA, WRITTEN, Recipe, load_toml, without_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

READ_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, NotImplementedError)
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
OPTIONS = api.Options(device="cpu", workers=1, overwrite=True, chunk_tokens=16)


class WrongError(AssertionError):
    """A result is wrong: there was no error, and the output does not match the input."""


@cache
def folder() -> Path:
    """Return this process's temporary folder, in memory if possible."""
    memory = Path("/dev/shm")  # noqa: S108 - the parent of a temporary folder
    parent = memory if memory.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="rlpost-fuzz-", dir=parent))


def clean_up() -> None:
    """Remove this process's temporary folder."""
    shutil.rmtree(folder(), ignore_errors=True)
    folder.cache_clear()
    _inputs.cache_clear()
    enriched.cache_clear()


def _expect(truth: bool, text: str) -> None:  # noqa: FBT001
    if not truth:
        raise WrongError(text)


# Parquet

RECIPES = (
    Recipe(),
    Recipe(estimator="gae", whiten_advantages=True, nonfinite="mask"),
    Recipe(emit_only=True, emit=("advantages", "kl", "group_mean", "final_response_mask")),
    Recipe(kl_coef=0.1, kl_estimator="k3", is_weight="sequence", drop_truncated=True),
    Recipe(estimator="optimal_token_baseline", columns={"sum_pi_squared": "values"}),
    Recipe(estimator="raw", emit=("token_level_rewards",)),
)


def check_parquet(data: bytes) -> str:
    """Run a command on a Parquet file: an error, or an output with the input's columns."""
    source, target = folder() / "in.parquet", folder() / "out.parquet"
    source.write_bytes(data)
    command = FILE_COMMANDS[zlib.crc32(data) % len(FILE_COMMANDS)]
    try:
        command(source, target)
    except RlpostError as error:
        _expect(bool(str(error)), "an error without a message")
        _expect(sorted(folder().iterdir()) == [source], "a failed run left files")
        return type(error).__name__
    else:
        if target.exists():
            same_columns(source, target, NEW)
        return "done"
    finally:
        for path in folder().iterdir():
            path.unlink()


def _enrich(recipe: Recipe, source: Path, target: Path) -> None:
    api.advantages(source, target, recipe, OPTIONS)
    new = {*pq.read_schema(target).names} - {*pq.read_schema(source).names}
    table = pq.ParquetFile(target).read(sorted(new & {"advantages", "returns"}))
    made = table.schema.field("advantages").type if "advantages" in table.column_names else None
    if made == pa.list_(pa.float32()) and "response_mask" in pq.read_schema(source).names:
        masks = pq.ParquetFile(source).read(["response_mask"])["response_mask"]
        lengths = [[len(row) for row in x.to_pylist()] for x in (masks, table["advantages"])]
        _expect(lengths[0] == lengths[1], "advantages are not one per response token")


FIELDS = pa.schema([("advantages", pa.list_(pa.float32())), ("kept", pa.bool_())])
NEW = {*FIELDS.names, *WRITTEN, *EXTRA}
MOST_ROWS = 10_000


def _splice(source: Path, target: Path) -> None:
    """Append constant columns: faster than computing them."""
    try:
        footer = read_metadata(source)[0]
    except READ_ERRORS as error:
        raise DataError(str(error)) from None
    if footer.num_rows > MOST_ROWS:
        raise DataError("too many rows")
    sink = open_sink(source, target, FIELDS, drop=FIELDS.names)
    try:
        for group in range(footer.num_row_groups):
            rows = footer.row_group(group).num_rows
            lists = pa.array([[0.5] * (row % 3) for row in range(rows)], FIELDS[0].type)
            kept = pa.array([row % 2 == 0 for row in range(rows)])
            sink.append(group, *sink.encode([pa.record_batch([lists, kept], schema=FIELDS)]))
        sink.complete({"rlpost.version": "0"})
        sink.output.publish()
    finally:
        sink.abort()
    found = pq.ParquetFile(target).read(["advantages", "kept"], use_threads=False)
    _expect(found.num_rows == footer.num_rows, "the new columns have a wrong number of rows")


def _inspect(source: Path, target: Path) -> None:  # noqa: ARG001
    inspect([source]).as_json()


def _verify(source: Path, target: Path) -> None:  # noqa: ARG001
    verify([source], OPTIONS)


def _loss(source: Path, target: Path) -> None:
    loss(source, target, options=OPTIONS)


FILE_COMMANDS: tuple[Callable[[Path, Path], None], ...] = (
    *(partial(_enrich, recipe) for recipe in RECIPES),
    _inspect,
    _loss,
    _verify,
    *([_splice] * 10),
)


def same_columns(source: Path, target: Path, replaced: Collection[str] = ()) -> None:
    """Check that kept columns have the same values, or cannot be read in both files."""
    before, after = pq.ParquetFile(source), pq.ParquetFile(target)
    _expect(before.metadata.num_rows == after.metadata.num_rows, "wrong number of rows")
    for field in before.schema_arrow:
        if field.name in replaced or field.name not in after.schema_arrow.names:
            continue
        _expect(after.schema_arrow.field(field.name).equals(field), f"{field.name!r}: wrong type")
        old, new = _column(before, field.name), _column(after, field.name)
        if isinstance(old, str) or isinstance(new, str):
            _expect(isinstance(old, str) == isinstance(new, str), f"{field.name!r}: {old} / {new}")
        elif not old.equals(new):  # for `equals`, NaN differs from NaN
            _expect(old.to_pylist().__repr__() == new.to_pylist().__repr__(), f"{field.name!r}")


def _column(file: pq.ParquetFile, name: str) -> pa.ChunkedArray | str:
    """Return a column, or the error if it cannot be read."""
    try:
        return file.read([name], use_threads=False)[name]
    except READ_ERRORS as error:
        return f"{type(error).__name__}: {error}"


def check_footer(data: bytes) -> str:
    """Decode and encode a struct: an error, or an equal struct."""
    try:
        struct, used = decode(data, FOOTER)
    except FooterError:
        return "FooterError"
    _expect(0 < used <= len(data), "more bytes decoded than there are")
    again = encode(struct)
    _expect(decode(again, FOOTER) == (struct, len(again)), "another struct after a round trip")
    return "done"


# Dumps


def check_dump(data: bytes) -> str:
    """Convert a dump: an error, or token lists of equal length in each row."""
    name, suffix = seeds.FORMATS[data[0] % len(seeds.FORMATS)] if data else seeds.FORMATS[0]
    source, target = folder() / f"in{suffix}", folder() / "out.parquet"
    source.write_bytes(data[1:])
    try:
        convert(source, target, name, ReadOptions())
        table = pq.read_table(target)
        lists = [table[name] for name in TOKEN_COLUMNS if name in table.column_names]
        lengths = [[len(values) for values in column.to_pylist()] for column in lists]
        _expect(all(x == lengths[0] for x in lengths), "token lists differ in length")
    except RlpostError as error:
        _expect(sorted(folder().iterdir()) == [source], "a failed run left files")
        return type(error).__name__
    finally:
        for path in folder().iterdir():
            path.unlink()
    return "done"


# Recipes


def check_recipe(data: bytes) -> str:
    """Read a recipe: an error, or a recipe with tomllib's fields that survives its own JSON."""
    path = folder() / "recipe.toml"
    path.write_bytes(data)
    try:
        recipe = Recipe.of(without_loss(load_toml(path)))
    except RlpostError as error:
        return type(error).__name__
    _expect(Recipe.model_validate_json(recipe.model_dump_json()) == recipe, "another recipe")
    table = tomllib.loads(data.decode())
    _expect(all(hasattr(recipe, key.replace("-", "_")) for key in table if key != "loss"), "lost")
    return "done"


# Command lines


@cache
def _inputs() -> Path:
    """Return a folder with valid and invalid files, some with hostile names."""
    top = folder() / "files"
    top.mkdir()
    pq.write_table(seeds.rollout(), top / "in.parquet")
    odd = seeds.rollout().rename_columns(
        ["prompt_id", "step", "reward", "\x1b[2Jmask", *seeds.rollout().column_names[4:]]
    )
    pq.write_table(odd, top / "odd.parquet")
    pq.write_table(seeds.rollout(), top / "\x1b]0;owned\x07.parquet")
    (top / "step=3").mkdir()
    pq.write_table(seeds.rollout(), top / "step=3" / "a.parquet")
    (top / "recipe.toml").write_text('estimator = "gae"\n')
    (top / "bad.jsonl").write_text('{"reward": "\\u001b[31m"}\n')
    return top


UNFUZZED = ("browse", "report", "doctor")
"""Commands that need a terminal or seconds for a run."""


def check_line(data: bytes) -> str:
    """Run a command line: it must end with a documented exit code, without control characters."""
    words = [word for word in data.decode(errors="replace").split("\n") if _harmless(word)]
    if not words or words[0] not in COMMANDS or words[0] in UNFUZZED:
        words = ["inspect", *words]
    top = _inputs()
    out = top / "out"
    ran = run(*(word.replace("@", f"{top}/") for word in words))
    shutil.rmtree(out, ignore_errors=True)
    _check_end(ran)
    return f"exit {ran.code}"


def _check_end(ran: Any) -> None:
    """Check that a command ended as documented, without control characters."""
    _expect(ran.code in {0, 1, 2, 3, 4, 5}, f"exit code {ran.code}")
    _expect("Traceback" not in ran.err, "a traceback")
    for text in (ran.out, ran.err):
        found = CONTROLS.search(text)
        _expect(found is None, f"printed {found and text[found.start() - 20 : found.end() + 5]!r}")


# Metadata


@cache
def enriched() -> pa.Table:
    """Return the table of an enriched file, with its metadata."""
    source, target = folder() / "source.parquet", folder() / "enriched.parquet"
    pq.write_table(seeds.rollout().drop_columns(["info"]), source)
    api.advantages(source, target, Recipe(estimator="raw"), OPTIONS)
    table = pq.read_table(target)
    source.unlink()
    target.unlink()
    return table


def _metadata() -> list[bytes]:
    texts = enriched().schema.metadata
    stored = {key.decode(): value.decode() for key, value in texts.items() if b"rlpost" in key}
    return [json.dumps(stored).encode()]


def check_metadata(data: bytes) -> str:
    """Write texts into a file's metadata, and run what reads them: the file does not change."""
    try:
        stored = json.loads(data)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(stored, dict):
        return "no mapping"
    texts = {key: x if isinstance(x, str) else json.dumps(x) for key, x in stored.items()}
    encoded = {
        str(key).encode(errors="replace"): text.encode(errors="surrogatepass")
        for key, text in texts.items()
    }
    path = folder() / "changed.parquet"
    pq.write_table(enriched().replace_schema_metadata(encoded), path)
    before, codes = path.read_bytes(), []
    for words in (["verify", path], ["inspect", path], ["compare", path, path], ["replay", path]):
        ran = run(*words, *(["--quiet"] if words[0] == "inspect" else []))
        _check_end(ran)
        codes.append(str(ran.code))
    _expect(path.read_bytes() == before, "an input changed")
    path.unlink()
    _expect(not [*folder().glob("*.parquet")], "files are left")
    return " ".join(codes)


def _harmless(word: str) -> bool:
    """Return whether a word cannot lead to other folders, the network, or user code."""
    loose = "/" in word.replace("@step=3/", "") or ".." in word or ":" in word or "debug" in word
    return not loose and "\0" not in word and not word.startswith(("~", ">"))


@cache
def vocabulary() -> tuple[str, ...]:
    """Return commands, their options, and values."""
    named = [name for name in COMMANDS if name not in UNFUZZED]
    apps = [get_command(app_of(name)) for name in named]
    options = {o for app in apps for p in app.params for o in getattr(p, "opts", ())}
    unsafe = {"--summary-json", "--state", "--device", "--workers"}
    odd = [name.decode(errors="replace") for name in mutate.NAMES]
    return (*named, *sorted(options - unsafe), *VALUES, *odd)


VALUES = (
    "@in.parquet", "@odd.parquet", "@bad.jsonl", "@step=3/a.parquet", "@*.parquet", "@", "@out",
    "@out/a.parquet", "@\x1b]0;owned\x07.parquet", "@recipe.toml", "grpo", "gae", "json", "table",
    "markdown", "reward=reward", "mask=\x1b[2Jmask", "reward=none", "reward=\x1b[31m", "0", "1",
    "-1", "1e308", "nan", "inf", "8,4,1", "8 4 1", "gamma=0.5,0.9", "all", "=", "a=b=c", "--",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One thing to fuzz."""

    name: str
    check: Callable[[bytes], str]
    mutate: mutate.Mutator
    good: Callable[[], list[bytes]]

    @cached_property
    def start(self) -> list[bytes]:
        """The inputs to mutate: seeds, and the packed corpus."""
        return [*self.good(), *seeds.packed(self.name)]


def _dump_mutator(data: bytes, rng: Any, others: Any) -> bytes:
    place = data[0] % len(seeds.FORMATS) if data else 0
    suffix = seeds.FORMATS[place][1]
    by = {".pt": mutate.archive, ".parquet": mutate.parquet}.get(suffix, mutate.json_text)
    return bytes([place]) + by(data[1:], rng, [x[1:] for x in others[:8]])


def _recipe_lines() -> list[str]:
    fields = [
        *Recipe.model_fields,
        *(f"numerics.{n}" for n in type(Recipe().numerics).model_fields),
    ]
    odd = ("1", "-1", "0.5", "nan", "inf", "true", '"x"', '"group"', "[]", "{}", "1e400", "[8,4,1]",
           "9" * 5000, "[" * 200, '"\\u001b[2J"', '{a="b"}', "1979-05-27", '["a","b"]')  # fmt: skip
    return [f"{field} = {value}" for field in fields for value in odd] + ["[numerics]", "[loss]"]


def _footers() -> list[bytes]:
    return [data[-8 - int.from_bytes(data[-8:-4], "little") : -8] for data in seeds.parquet_seeds()]


def _lines() -> list[bytes]:
    lines = ("advantages @in.parquet @out/a.parquet", "inspect @odd.parquet --format markdown",
             "convert @bad.jsonl @out --from jsonl", "loss @in.parquet", "list presets",
             "list estimators", "list losses",
             "compare @in.parquet --estimator grpo --estimator rloo",
             "advantages @in.parquet --plan", "inspect @in.parquet --worst")  # fmt: skip
    return [line.replace(" ", "\n").encode() for line in lines]


def _recipes() -> list[bytes]:
    texts = (
        "estimator = 'gae'\ngamma = 0.9\nlam = 0.5\n[numerics]\nnorm_eps = 1e-5\n",
        "kl-coef = 0.1\nkl_target = 2\nemit = ['advantages', 'kl']\n[columns]\nreward = 'r'\n",
        "reward_clip = 5\ndrop_longer = 8\n",
    )
    return [text.encode() for text in (*texts, *_preset_texts())]


def _preset_texts() -> list[str]:
    folder_of = Path(import_module("rlpost.recipe.presets").__file__ or "").parent
    return [path.read_text() for path in sorted(folder_of.glob("*.toml"))]


TARGETS = {
    target.name: target
    for target in (
        Target("parquet", check_parquet, mutate.parquet, seeds.parquet_seeds),
        Target("dumps", check_dump, _dump_mutator, seeds.dump_seeds),
        Target("footer", check_footer, mutate.by_bytes, _footers),
        Target("recipe", check_recipe, mutate.lines_of(_recipe_lines()), _recipes),
        Target("line", check_line, mutate.lines_of(vocabulary()), _lines),
        Target("metadata", check_metadata, mutate.json_text, _metadata),
    )
}
