"""Records of JSON and JSONL: every reader reads and rejects the same."""

from __future__ import annotations

import numpy as np
import pytest
from dump_folders import names

from rlpost.errors import DataError
from rlpost.formats import FORMATS, detect
from rlpost.formats.containers import JSON, MOST_SNIFFED, json_records
from rlpost.formats.convert import convert
from rlpost.formats.records import Record
from rlpost.io.input_paths import step_key_of


def test_a_json_array_of_objects_is_read_as_its_records(tmp_path):
    path = tmp_path / "in.json"
    path.write_text(' \n[{"a": 1}, {"a": 2}]')
    assert [one.fields["a"] for one in json_records(path)] == [1, 2]
    assert JSON.first(path) == {"a": 1}
    path.write_text('[{"a": 1}, 2]')
    with pytest.raises(DataError, match="element 1 of the array: is 2; a JSON object"):
        list(json_records(path))


def test_extensions_of_pythons_json_are_read(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"a": NaN, "b": -Infinity, "c": 123456789012345678901234567890}\n\n{"a": 1}\n')
    first, second = json_records(path)
    assert np.isnan(first.fields["a"])
    assert first.fields["b"] == -np.inf
    assert first.fields["c"] == 123456789012345678901234567890
    assert second.where == f"{path}, line 3"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "the line is incomplete: it ends after 7 bytes"),
        (b'{"a" 1}', "Expecting ':' delimiter at column 6"),
        (b'{"a": "\xff"}', "not UTF-8 text"),
        (b"null", "is null; a JSON object is needed"),
        (b"[" * 100_000, "nested too deeply to read"),
    ],
)
def test_the_error_for_a_bad_line_names_it(line, message, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a": 0}\n' + line + b"\n")
    with pytest.raises(DataError, match=r"in\.jsonl, line 2: ") as raised:
        list(json_records(path))
    assert message in str(raised.value)


@pytest.mark.parametrize("text", [b"", b"\n\n", b"{", b"\xff", b"[]", b"[1]", b"3", b"PK\x03\x04"])
def test_no_sniff_raises_for_any_contents(text, tmp_path):
    for suffix in (".jsonl", ".json", ".pt", ".parquet"):
        path = tmp_path / f"in{suffix}"
        path.write_bytes(text)
        assert [one.name for one in FORMATS.values() if one.fits(path)] == []
    assert JSON.first(tmp_path / "missing.jsonl") == {}


def test_a_sniff_reads_a_bounded_number_of_bytes(tmp_path):
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.write(b'{"token_loss_mask": "')
        file.truncate(MOST_SNIFFED * 4)  # one endless line, which takes no room on the disk
    assert detect(path) is None


def test_a_file_without_records_is_an_error(tmp_path):
    for text, message in (
        ("", "no records"),
        ("\n\n", "no records"),
        ("[]", "no records"),
    ):
        (tmp_path / "in.jsonl").write_text(text)
        with pytest.raises(DataError, match=message):
            convert(tmp_path / "in.jsonl", tmp_path / "out.parquet", "nemo-rl")
    assert names(tmp_path) == ["in.jsonl"]


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("train_data_step12.jsonl", 12),
        ("step_3/rollout_dump_data.step_40.jsonl", 40),
        ("run/step_3/train/traces.jsonl", 3),
        ("footsteps_3/step=5/x.jsonl", 5),
        ("footsteps_3/x.jsonl", None),
    ],
)
def test_steps_are_read_from_path_names(path, step, tmp_path):
    assert step_key_of(tmp_path / path) == step


@pytest.mark.parametrize(
    ("rows", "fields", "read"),
    [
        ("s", {"n": 7, "s": [{"x": 1}, {"x": 2}]}, [{"n": 7, "x": 1}, {"n": 7, "x": 2}]),
        ("a.b", {"a": [{"k": 1, "b": [{"x": 1}]}, {"b": []}, {"b": None}]}, [{"k": 1, "x": 1}]),
        ("a.b", {"a": {"b": [{"a": 5}]}}, [{"a": 5}]),
        ("scores", {"seed": 0, "scores": [1, 0], "ids": [[1], [2]], "other": [3]},
         [{"seed": 0, "scores": 1, "ids": [1]}, {"seed": 0, "scores": 0, "ids": [2]}]),
    ],
)  # fmt: skip
def test_rows_are_the_items_of_a_list_with_the_scalars_around_them(rows, fields, read):
    made = [*Record("line 1", fields).rows(rows)]
    assert [dict(row.columns) for row in made] == read
    assert made[0].where.startswith("line 1, ")
    assert made[0].lookup(rows.split(".")[0]) is not None


@pytest.mark.parametrize(
    ("rows", "fields"),
    [("x", {}), ("x", {"x": {}}), ("x", {"x": [{}, 1]}), ("x.y", {"x": [1]}), ("x", {"x": 3})],
)  # fmt: skip
def test_what_is_no_list_of_rows_is_named(rows, fields):
    with pytest.raises(DataError, match=r"line 1: (no field )?`x`"):
        [*Record("line 1", fields).rows(rows)]


def test_a_path_is_looked_up_in_the_record_and_then_in_what_contains_it():
    fields = {"m": {"id": 7}, "n": None, "s": [{"m": {"x": 1}, "a.b": 1, "a": {"b": 2, "c": 3}}]}
    (row,) = Record("line 1", fields).rows("s")
    paths = ("m.x", "m.id", "n", "n.x", "a.b", "a.c", "a.c.d", "a.x | a.c")
    assert [row.lookup(path) for path in paths] == [1, 7, None, None, 1, 3, None, 3]
    with pytest.raises(DataError, match=r"line 1, s 0: no field `q\.x`"):
        row.lookup("q.x")
