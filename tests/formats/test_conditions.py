"""Conditions: what is allowed gives DuckDB's rows; nothing else is computed, opened or fetched."""

from __future__ import annotations

import math
import subprocess
import sys
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError, UsageError
from rlpost.formats.where import Where
from rlpost.interface.inputs import open_inputs

TYPES = {"x": pl.Float64, "y": pl.Float64, "i": pl.Int64, "s": pl.String, "t": pl.String,
         "b": pl.Boolean, "n": pl.Int8, "f": pl.Float32, "prompt_id": pl.String}  # fmt: skip
FLOATS = st.sampled_from([None, math.nan, -2.5, -1.0, 0.0, 0.25, 1.0, 3.0])
INTEGERS = st.sampled_from([None, -3, -1, 0, 1, 2, 7])
TEXTS = st.sampled_from([None, "", "a", "ab", "B", "a'b", "a%", "a_c", "a.c", "ä\n"])
ROWS = st.lists(
    st.fixed_dictionaries(
        {"x": FLOATS, "y": FLOATS, "i": INTEGERS, "s": TEXTS, "t": TEXTS,
         "b": st.sampled_from([None, True, False]), "n": st.sampled_from([None, -128, 0, 5, 127]),
         "f": FLOATS, "prompt_id": st.sampled_from([None, "g", "h"])}
    ),
    min_size=1, max_size=9,
)  # fmt: skip
SIGN = st.sampled_from(["<", "<=", "=", "==", "<>", "!=", ">", ">="])
NUMBER = st.sampled_from(["-2.5", "-1", "0", "0.25", "1", "3", "100", "1e0"])
TEXT = st.sampled_from(["''", "'a'", "'ab'", "'a''b'", "'B'", "'a.c'"])
PATTERN = st.sampled_from(["'a%'", "'%b'", "'a_'", "'a_c'", "'%'", "''", "'a.c'", "'b'", "'a%%'"])


def build(form, *parts):
    return st.builds(form.format, *parts)


NUMBERS = st.recursive(
    st.sampled_from(["x", "y", "i", "n", "f", "step", "-2.5e0", "-1", "0", "0.25e0", "3"]),
    lambda part: st.one_of(
        build("({} {} {})", part, st.sampled_from(["+", "-", "*"]), part),
        build("({} {} «{}»)", part, st.sampled_from(["/", "%"]), part),
        build("-({})", part), build("abs({})", part), build("floor({})", part),
        build("ceil({})", part), build("sqrt(abs({}))", part),
        build("coalesce({}, {})", part, part),
        build("length({})", st.sampled_from(["s", "lower(t)"])),
    ),
    max_leaves=4,
)  # fmt: skip
STRINGS = st.one_of(
    st.sampled_from(["s", "t", "lower(s)", "upper(s)", "coalesce(s, t)", "coalesce(s, 'a')"]), TEXT
)
FUNCTION = st.sampled_from(["contains", "starts_with", "ends_with"])
TESTS = st.one_of(
    build("{} {} {}", NUMBERS, SIGN, NUMBERS),
    build("{} {} {}", NUMBERS, SIGN, NUMBER),
    build("{} {} {}", STRINGS, SIGN, STRINGS),
    build("{} {} between {} and {}", NUMBERS, st.sampled_from(["", "not"]), NUMBERS, NUMBERS),
    build("{} {} in ({}, {})", NUMBERS, st.sampled_from(["", "not"]), NUMBER, NUMBER),
    build("{} {} in ({}, {})", STRINGS, st.sampled_from(["", "not"]), TEXT, TEXT),
    build("{} is {} null", st.one_of(NUMBERS, STRINGS, st.just("b")), st.sampled_from(["", "not"])),
    build("b is {} {}", st.sampled_from(["", "not"]), st.sampled_from(["true", "false"])),
    build("{} {} {} {}", STRINGS, st.sampled_from(["", "not"]),
          st.sampled_from(["like", "ilike"]), PATTERN),
    build("{}({}, {})", FUNCTION, STRINGS, STRINGS),
    build("b {} {}", st.sampled_from(["=", "<>"]), st.sampled_from(["true", "false", "(x > y)"])),
    st.just("b"),
)  # fmt: skip
CONDITIONS = st.recursive(
    TESTS,
    lambda part: st.one_of(
        build("({} and {})", part, part), build("{} or {}", part, part), build("not ({})", part)
    ),
    max_leaves=4,
)


def written(rows, path):
    """A file of rows in groups of two rows, and its table as conditions see it."""
    table = pl.DataFrame(rows, TYPES).with_row_index("step").with_columns(
        pl.col("step") // 3, place=pl.int_range(pl.len()))  # fmt: skip
    arrow = table.cast({"s": pl.Categorical, "step": pl.UInt64}).to_arrow()
    pq.write_table(arrow, path, row_group_size=2)
    return table.with_columns(pl.col(pl.Float64, pl.Float32).fill_nan(None))


@settings(max_examples=100, deadline=None)
@given(rows=ROWS, text=CONDITIONS)
def test_files_give_the_rows_of_duckdb_and_count_them(tmp_path_factory, rows, text):
    path = tmp_path_factory.mktemp("where") / "in.parquet"
    table = written(rows, path)
    try:
        where = Where(text.replace("«", "").replace("»", ""))
    except UsageError as error:
        assert "names no column" in str(error)  # noqa: PT017
        return
    of_duckdb = text.replace("«", "nullif(").replace("»", ", 0)")  # null here, too
    with duckdb.connect() as base:
        base.register("rows", table.cast({"n": pl.Int64}).to_arrow())
        matches = base.sql(f"select place from rows where {of_duckdb} order by 1").fetchall()  # noqa: S608
    expected = [place for (place,) in matches]
    try:
        with open_inputs([path], reporter=SilentReporter(), where=where) as opened:
            kept = pl.concat(map(pl.read_parquet, opened.paths))["place"].to_list()
    except DataError:
        kept = []
    assert kept == expected
    counts = where.as_json()
    assert (counts["rows"], counts["matched"]) == (len(rows), len(expected))
    if {*where.names} != {"step"}:  # of which all rows of a group have one
        known = table.filter(pl.col("prompt_id").is_not_null())
        groups = known.group_by("prompt_id", "step").agg(pl.col("place").is_in(expected))
        groups = groups.filter(pl.col("place").list.any())
        cut = groups.filter(~pl.col("place").list.all())
        assert (counts["groups"], counts["groups_cut"]) == (len(groups), len(cut))


ATTACKS = (
    "reward > (select 1)", "exists (select 1)", "reward in (select 1)",
    "(select max(x) from read_csv('/etc/hostname')) > reward",
    "/* ' */ reward > 0 or (select count(*) from \"read_csv\"('/etc/hostname')) > 0 /* ' */",
    "reward > 0 -- '\n or (select 1 from read_parquet('http://127.0.0.1:1/x')) > 0 -- '",
    "read_csv('/etc/passwd') > reward", "\"read_csv\"('/etc/passwd') > reward",
    "glob('/etc/*') = reward", "getenv('HOME') = reward", '"sum"(reward) > 0',
    "sum(reward) > 0", "sum(reward) over () > 0", "row_number() over (order by reward) > 1",
    "reward > 0; attach '/tmp/x.db'", "reward > 0 union select 1", "rows.reward > 0",
    "from '/etc/passwd' select reward", "cast(reward as varchar) = 'a'", "reward::text = 'a'",
    "reward > any (select 1)", "reward = [1, 2]", "{'a': reward} = 1", "reward[1] = 1",
    "case when reward > 0 then true end", "reward like 'a' escape '!'", "reward || 'a' = 'b'",
    "list_transform(reward, x -> x) = 1", ":reward > 0", "? > reward", "* > reward",
    "columns('a.*') > reward", "reward similar to 'a'", "reward glob '*'",
    "interval 1 day > reward",
    "regexp_like(reward, '(a+)+$')", "reward is distinct from 1", "try_cast(reward as int) = 1",
    "(" * 500 + "reward" + ")" * 500, "not " * 500 + "ok", "- " * 500 + "reward",
)  # fmt: skip


def test_nothing_else_is_parsed_computed_opened_or_fetched():
    """All attacks in one process, under a hook that sees what Python opens and imports."""
    code = """
import sys
from rlpost.errors import UsageError
from rlpost.formats.where import Where
Where("reward > 0 and not (domain like 'a%')")
try:
    Where("sum(reward) > (select 1)")
except UsageError:
    pass
seen = []
KINDS = ("open", "import", "socket", "subprocess", "os", "exec", "compile", "ctypes")
sys.addaudithook(lambda name, _: seen.append(name) if name.split(".")[0] in KINDS else None)
for text in ATTACKS:
    try:
        Where(text)
    except UsageError as error:
        assert "allowed are" in str(error), (text, error)
        assert str(error).startswith(f"--where {text}: "), error
    else:
        raise AssertionError(text)
assert not seen, seen[:5]
"""
    code = f"ATTACKS = {ATTACKS!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        ("reward > 0 and (select 1) > 2", "`1` is not expected", 23),
        ("reward > 0 and domain similar to 'a'", "`similar` is not expected", 22),
        ("domain || 'a' = 'b'", "`|` is not expected", 7),
        ("agent.name = 'a'", "`.` is not expected", 5),
        ("domain = '", "`'` is not expected", 9),
        ("reward > 1_000", "`1` is not expected", 9),
        ("reward in ('a', 1)", "`'a'` is a text, and a number is needed", 11),
        ("array_length(tokens) > 1", "array_length(...) is not a function of one row", 0),
        ("lenght(s) > 1", "did you mean length?", 0),
        ("contains(s) and ok", "contains(...) has 1 arguments", 0),
        ("reward > ", "is no condition in SQL: its end is not expected", 9),
        ("1 = 1", "names no column", None),
        ("u" + " % 9" * 12 + " = 1", "it has too many operations", 0),
        ("u" + " + 1" * 300 + " = 1", "it has too many operations", 0),
        ("(" * 60 + "u" + ")" * 60 + " = 1", "it is nested too deeply", 50),
    ],
)
def test_an_error_shows_the_place_and_what_is_allowed(text, message, at):
    with pytest.raises(UsageError) as error:
        Where(text)
    assert message in str(error.value)
    assert f"--where {text}" in str(error.value)
    (part,) = error.value.parts
    assert part.caret == (-1 if at is None else len("--where ") + at)


def test_words_of_sql_that_conditions_lack_are_names_of_columns():
    for word in ("select", "group", "values", "end", "case", "LENGTH", "ROW", "ABS", "maß"):
        assert Where(f"{word} > 1 and x = {word}").names == (word, "x")


def test_a_name_is_never_a_pattern_and_quotes_keep_it():
    frame = pl.DataFrame({"*": [1, 2], "^.*$": [2, 1], "a": [0, 0], 'q"': [2, 1], "a.b": [1, 1]})
    for text, rows in (('"*" > 1', [1]), ('"^.*$" > 1', [0]), ('"q""" > "a.b"', [0])):
        where = Where(text)
        found = where.matching({name: frame[name] for name in where.names})
        assert found.nonzero()[0].tolist() == rows


def test_a_long_condition_is_computed():
    values = pl.Series(range(3000))
    where = Where(" or ".join(f"x = {one}" for one in range(0, 3000, 3)))
    assert where.matching({"x": values}).sum() == 1000
    names = ", ".join(f"'{one}'" for one in range(0, 3000, 3))
    assert Where(f"x in ({names})").matching({"x": values.cast(pl.String)}).sum() == 1000


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("u - 1 > 0", [1]),
        ("u > 9223372036854775807", [1]),
        ("u = 9223372036854775813", [1]),
        ("u = 9223372036854775812 or u in (9223372036854775813, 1)", [1]),
        ("u * 2 > 18446744073709551616 and -u < -9223372036854775808", [1]),
        ("u < 1" + "0" * 5000, [0, 1]),
        ("abs(" * 40 + "u - 9223372036854775813" + ")" * 40 + " = 0", [1]),
        ("u % 9223372036854775810 = 3 or u" + " % 7" * 5 + " = 6", [1]),
        ("d + 1 > 2 and d > 0.5", [1]),
        ("lower(empty) = 'a' or u = 0", [0]),
        ("not empty or u = 0", [0]),
        ("empty = 'a' or empty < 'b' or u = 0", [0]),
        ("f = 0.1", [0]),
        ("nan > 0 or nan < 0 or nan is null and f > 0.2", [1]),
    ],
)
def test_values_of_any_type_are_compared(text, rows):
    columns = {
        "u": pl.Series([0, (1 << 63) + 5], dtype=pl.UInt64),
        "d": pl.Series([Decimal("0.5"), Decimal("1.25")]),
        "empty": pl.Series([None, None]),
        "f": pl.Series([0.1, 0.3], dtype=pl.Float32),
        "nan": pl.Series([math.nan, math.nan]),
    }
    where = Where(text)
    found = where.matching({name: columns[name] for name in where.names})
    assert found.nonzero()[0].tolist() == rows


@pytest.mark.parametrize(
    ("where", "needed"),
    [
        ("not count", "bool"), ("flag and count", "bool"), ("count is true", "bool"),
        ("contains(count, '1')", "text"), ("count in ('3')", "text"), ("count like '1'", "text"),
        ("name + 1 > 2", "number"), ("-name > 2", "number"), ("abs(flag) > 0", "number"),
    ],
)  # fmt: skip
def test_a_part_of_another_kind_than_is_needed_is_an_error(where, needed):
    values = {"count": pl.Series([3], dtype=pl.UInt64), "name": pl.Series(["a"]),
              "flag": pl.Series([True]), "empty": pl.Series([None])}  # fmt: skip
    condition = Where(where)
    with pytest.raises(UsageError, match=rf"` is a \w+, and a {needed} is needed"):
        condition.matching({name: values[name] for name in condition.names})
    for name in condition.names:  # a column without values fits all
        where = where.replace(name, "empty")
    assert not Where(where).matching({"empty": values["empty"]}).any()
    assert Where("-count < 0").matching({"count": values["count"]}).all()
