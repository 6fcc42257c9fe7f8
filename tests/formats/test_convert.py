"""Conversions as a whole: outputs, errors, and the functions that formats share."""

from __future__ import annotations

import io
import json
from unittest import mock

import format_writers as writers
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from runs import rollout, run, save

from rlpost import formats
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.formats import FORMATS, detect, format_named, layout, writer
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert
from rlpost.formats.inputs import canonical_inputs, convert_inputs
from rlpost.formats.keys import prompt_key
from rlpost.formats.keys import step_key_of as step_of
from rlpost.formats.records import MOST_SNIFFED, first_fields, json_fields, json_records
from rlpost.formats.rows import Row, infer_other_fields, record_batches
from rlpost.render import convert as render_convert

PLAIN = ReadOptions()


@pytest.fixture
def dump(tmp_path):
    return writers.nemo_rl(tmp_path / "in", writers.made())


def steps(folder, *numbers):
    """A dump per step, of samples of its own."""
    for number in numbers:
        made = writers.nemo_rl(folder, writers.made(seed=number))
        made.rename(folder / f"train_data_step{number}.jsonl.part")
    for part in folder.glob("*.part"):
        part.rename(part.with_suffix(""))
    return folder


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# Outputs


def test_one_dump_goes_to_one_file_whatever_its_name(dump, tmp_path):
    convert(dump, tmp_path / "out.pq")
    assert pq.read_metadata(tmp_path / "out.pq").num_rows == 12


def test_a_directory_goes_to_a_directory_of_the_same_layout(tmp_path):
    steps(tmp_path / "in" / "a", 1, 2)
    steps(tmp_path / "in" / "b", 3)
    (tmp_path / "in" / "a" / "metrics.jsonl").write_text('{"loss": 1}\n')
    summary = convert(tmp_path / "in", tmp_path / "out")
    assert names(tmp_path / "out") == [
        "a/train_data_step1.parquet", "a/train_data_step2.parquet", "b/train_data_step3.parquet",
    ]  # fmt: skip
    assert summary["responses"] == 36


def test_several_dumps_go_to_one_file_if_its_name_ends_in_parquet(tmp_path):
    steps(tmp_path / "in", 1, 2)
    convert(tmp_path / "in", tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet")
    assert table["step"].to_pylist() == [1] * 12 + [2] * 12
    assert table["old_log_probs"].to_pylist()[12:] == [one.old for one in writers.made(seed=2)]


def test_a_glob_means_its_matches(tmp_path):
    steps(tmp_path / "in", 1, 2, 13)
    convert(str(tmp_path / "in" / "*step1*.jsonl"), tmp_path / "out")
    assert names(tmp_path / "out") == ["train_data_step1.parquet", "train_data_step13.parquet"]


def test_the_output_of_a_glob_has_the_subfolders_of_its_matches(tmp_path):
    steps(tmp_path / "a" / "run1", 1)
    steps(tmp_path / "a" / "run2", 1)
    convert(str(tmp_path / "a" / "run*" / "*.jsonl"), tmp_path / "out")
    assert names(tmp_path / "out") == [f"run{n}/train_data_step1.parquet" for n in (1, 2)]


def test_dumps_of_one_name_need_the_directory_above_them(tmp_path):
    steps(tmp_path / "a", 1)
    steps(tmp_path / "b", 1)
    dumps = [tmp_path / side / "train_data_step1.jsonl" for side in "ab"]
    with pytest.raises(UsageError, match="would both become"):
        convert(dumps, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_is_replaced_only_with_overwrite(dump, tmp_path):
    out = tmp_path / "out.parquet"
    out.write_text("mine")
    with pytest.raises(UsageError, match="exists already; --overwrite"):
        convert(dump, out)
    assert run("advantages", dump, out, "--estimator", "grpo").code == 2
    assert out.read_text() == "mine"
    convert(dump, out, overwrite=True)
    assert pq.read_metadata(out).num_rows == 12


def test_an_output_is_never_an_input(dump):
    with pytest.raises(UsageError, match="are the same file"):
        convert(dump, dump, overwrite=True)


def test_nothing_appears_when_the_last_of_several_dumps_is_bad(tmp_path):
    steps(tmp_path / "in", 1, 2)
    last = tmp_path / "in" / "train_data_step2.jsonl"
    last.write_text(last.read_text()[:-40])
    with pytest.raises(DataError, match=r"step2\.jsonl, line 12"):
        convert(tmp_path / "in", tmp_path / "new" / "out")
    assert names(tmp_path) == ["in/train_data_step1.jsonl", "in/train_data_step2.jsonl"]
    assert not (tmp_path / "new").exists()


def test_an_unwritable_output_is_exit_code_4(dump, tmp_path):
    (tmp_path / "file").write_text("")
    ran = run("convert", dump, tmp_path / "file" / "out.parquet")
    assert ran.code == 4
    assert "cannot be written" in ran.err


# Formats


def test_a_file_of_an_unknown_format_is_an_error(tmp_path):
    path = writers.lines(tmp_path / "metrics.jsonl", [{"loss": 1}])
    with pytest.raises(UsageError, match="the format is unknown"):
        convert(path, tmp_path / "out.parquet")
    with pytest.raises(ReadWriteError, match="contains no file of a known format"):
        convert(tmp_path, tmp_path / "out")


def test_formats_are_not_mixed(dump, tmp_path):
    other = writers.roll_rollout(tmp_path / "in", writers.made())
    with pytest.raises(UsageError, match="contains dumps of"):
        convert(tmp_path / "in", tmp_path / "out")
    with pytest.raises(UsageError, match="convert one format at a time"):
        convert([dump, other], tmp_path / "out")
    summary = convert(tmp_path / "in", tmp_path / "out", "nemo-rl")
    assert names(tmp_path / "out") == ["train_data_step7.parquet"]
    assert summary["skipped_files"] == [str(other)]


def test_a_damaged_dump_in_a_directory_is_an_error_if_the_format_is_named(tmp_path):
    steps(tmp_path / "in", 1, 2)
    (tmp_path / "in" / "train_data_step2.jsonl").write_text('{"rewards"')
    ran = run("convert", tmp_path / "in", tmp_path / "out", "--from", "nemo-rl")
    assert ran.code == 3
    assert "step2.jsonl, line 1: not JSON" in ran.err
    ran = run("convert", tmp_path / "in", tmp_path / "out")
    assert ran.code == 0
    assert "! skipped, unknown format" in ran.err
    assert "train_data_step2.jsonl" in ran.err


def test_the_error_for_a_misspelt_format_has_the_closest_name():
    with pytest.raises(UsageError, match="did you mean nemo-rl"):
        format_named("nemo_rl")


def test_a_file_of_two_possible_formats_is_an_error_with_both_names(dump):
    twin = mock.Mock(suffixes=(".jsonl",), sniff=lambda _: True)
    twin.name = "twin"
    with (
        mock.patch.dict(formats.FORMATS, {"twin": twin}),
        pytest.raises(UsageError, match="may be nemo-rl or twin; select one with --from"),
    ):
        detect(dump)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layout", "padded"], "--layout: does not apply to nemo-rl"),
        (["--map", "reword=x"], "no role 'reword'; did you mean reward?"),
        (["--map", "reward"], "write it NAME=VALUE"),
        (["--from", "verll"], "did you mean verl?"),
    ],
)
def test_options_that_do_not_apply_are_an_error(words, message, dump, tmp_path):
    ran = run("convert", dump, tmp_path / "out.parquet", *words)
    assert ran.code == 2
    assert message in ran.err


def test_a_role_can_be_omitted_or_read_from_another_field(dump, tmp_path):
    chosen = ReadOptions({"old_log_probs": "none", "reward": "idx"})
    convert(dump, tmp_path / "out.parquet", options=chosen)
    table = pq.read_table(tmp_path / "out.parquet")
    assert "old_log_probs" not in table.column_names
    assert table["reward"].to_pylist() == list(range(12))


def test_every_format_is_listed_and_documented():
    for how in ("table", "json", "markdown"):
        ran = run("convert", "--list", "--format", how)
        assert ran.code == 0
        for one in FORMATS.values():
            assert one.name in ran.out
            assert one.title.split()[0] in ran.out
    listed = json.loads(run("convert", "--list", "--format", "json").out)
    assert [one["format"] for one in listed] == [*FORMATS]
    assert all(one["source"] for one in listed)


def test_the_screen_shows_roles_and_the_reasons_for_missing_roles(dump, tmp_path):
    ran = run("convert", dump, tmp_path / "out.parquet")
    assert (ran.code, ran.out) == (0, "")
    for text in ("12 responses, 47 response tokens", "ref_log_probs", "mask = token_loss_mask",
                 "group = token_ids (the same prompt tokens), reward = rewards",
                 "NeMo-RL does not dump the reference policy's log-probs"):  # fmt: skip
        assert text in ran.err
    assert run("convert", dump, tmp_path / "quiet.parquet", "--quiet") == (0, "", "")


def test_the_screen_fits_80_columns(dump, tmp_path):
    out = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    render_convert.show_converted(convert(dump, tmp_path / "out.parquet"), out)
    lines = out.file.getvalue().splitlines()
    assert lines[0].startswith("╭─ rlpost convert · nemo-rl")
    assert {len(line) for line in lines} == {80}


# Written files


def test_the_metadata_have_the_format_and_the_missing_roles(dump, tmp_path):
    convert(dump, tmp_path / "out.parquet")
    metadata = pq.read_metadata(tmp_path / "out.parquet").metadata
    assert metadata[b"rlpost.format"] == b"nemo-rl"
    assert json.loads(metadata[b"rlpost.missing_roles"]).keys() == {
        "log_probs", "ref_log_probs", "values"
    }  # fmt: skip


def test_columns_are_zstd_and_log_probs_byte_stream_split(dump, tmp_path):
    convert(dump, tmp_path / "out.parquet")
    group = pq.read_metadata(tmp_path / "out.parquet").row_group(0)
    chunks = [group.column(place) for place in range(group.num_columns)]
    assert {chunk.compression for chunk in chunks} == {"ZSTD"}
    split = {
        chunk.path_in_schema for chunk in chunks if "BYTE_STREAM_SPLIT" in chunk.encodings
    }  # fmt: skip
    assert split == {
        f"{name}.list.element" for name in ("old_log_probs", "infer_log_probs", "dumped_advantages")
    }


def test_rows_do_not_depend_on_batches_and_row_groups(dump, tmp_path):
    convert(dump, tmp_path / "whole.parquet")
    with (
        mock.patch.object(writer, "ROW_GROUP_BYTES", 1),
        mock.patch("rlpost.formats.rows.MOST_ROWS", 5),
    ):
        convert(dump, tmp_path / "pieces.parquet")
    assert pq.read_metadata(tmp_path / "pieces.parquet").num_row_groups == 3
    assert pq.read_table(tmp_path / "pieces.parquet").equals(
        pq.read_table(tmp_path / "whole.parquet")
    )


def test_the_bytes_of_a_batch_are_bounded():
    rows = (Row(str(i), {"response_mask": [1] * 1000}) for i in range(64))
    with mock.patch("rlpost.formats.rows.MOST_BYTES", 10_000):
        sizes = [batch.num_rows for batch in record_batches(rows, PLAIN)]
    assert sum(sizes) == 64
    assert max(sizes) <= 10


def test_dumps_with_and_without_log_probs_do_not_become_one_file(tmp_path):
    steps(tmp_path / "in", 1)
    writers.nemo_rl(tmp_path / "in", writers.made(), on_policy=True)
    with pytest.raises(DataError, match="only some have old_log_probs"):
        convert(tmp_path / "in", tmp_path / "all.parquet")
    with (
        mock.patch.object(writer, "ROW_GROUP_BYTES", 1),
        pytest.raises(DataError, match="only some have old_log_probs"),
    ):
        convert(tmp_path / "in", tmp_path / "all.parquet")
    convert(tmp_path / "in", tmp_path / "out")
    convert(
        tmp_path / "in", tmp_path / "all.parquet", options=ReadOptions({"old_log_probs": "none"})
    )


# Rows


def table_of(rows, **types):
    numbered = [Row(f"row {i}", values) for i, values in enumerate(rows)]
    return pa.Table.from_batches(record_batches(numbered, PLAIN, types))


def test_keys_are_text_and_equal_integers_of_any_type_are_one_key():
    table = table_of([{"prompt_id": 3}, {"prompt_id": 3.0}, {"prompt_id": "3"}])
    assert table["prompt_id"].to_pylist() == ["3"] * 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"response_mask": [1, 2]}], "row 0: `response_mask` has 2 at token 1"),
        ([{"response_mask": [1], "values": [1.0, 2.0]}], "row 0: its token lists differ in length"),
        (
            [{"response_mask": [1], "values": [1.0]}, {"response_mask": [1]}],
            "row 1: lacks values, which earlier records have",
        ),
        (
            [{"response_mask": [1]}, {"response_mask": [1], "values": [1.0]}],
            "row 1: has values, which earlier records lack",
        ),
        ([{"values": ["1.0"]}], "row 0: `values` is not a list of numbers"),
        ([{"values": [[1.0], [1.0, 2.0]]}], "row 0: `values` is a list of lists"),
        ([{"values": 1.0}], "row 0: `values` is 1.0"),
        ([{"response_token_ids": [1.5]}], "row 0: `response_token_ids` has 1.5 at token 0"),
        ([{"response_token_ids": [2**40]}], "row 0: `response_token_ids` has 1099511627776"),
        ([{"step": 1}, {"step": "x"}], "row 1: `step` is 'x'; int64 is needed"),
        ([{"reward": {"a": 1}}], "row 0: `reward` is {'a': 1}; double is needed"),
    ],
)
def test_the_error_for_a_bad_row_names_it(rows, message):
    with pytest.raises(DataError, match="row ") as raised:
        table_of(rows)
    assert message in str(raised.value)


def test_rows_without_tokens_have_empty_lists_and_no_nulls():
    table = table_of([{"response_mask": []}, {"response_mask": [1], "values": [0.5]}])
    assert table["values"].to_pylist() == [[], [0.5]]
    assert table["response_mask"].null_count == 0


def test_null_among_numbers_is_nan():
    (row,) = table_of([{"values": [1.0, None]}])["values"].to_pylist()
    assert row[0] == 1.0
    assert np.isnan(row[1])


# Records


def test_a_json_array_of_objects_is_read_as_its_records(tmp_path):
    path = tmp_path / "in.json"
    path.write_text(' \n[{"a": 1}, {"a": 2}]')
    assert [one.fields["a"] for one in json_records(path)] == [1, 2]
    assert first_fields(path) == {"a": 1}
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
        assert [one.name for one in FORMATS.values() if one.sniff(path)] == []
    assert first_fields(tmp_path / "missing.jsonl") == {}


_VALUES = ["0", "-0", "1.5", "1e999", "2E3", "9223372036854775807", "9223372036854775808",
           "1" + "0" * 5000, "true", "null", '"a.b"', '"\\ud83d\\ude00"', "{}", "[]", "[ ]",
           "[null]", "[1, 2]", "[9223372036854775808]", "[1.5,-2]", "[1e3, 2]", "[1.5, null]",
           "[1.5, true]", "[[1.5]]", '["1.5"]', "[true]", '[{"a": 1.5}]', "NaN", "[NaN, 1.5]",
           '"ß"']  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(_VALUES), max_size=3), min_size=1, max_size=5))
def test_types_are_those_of_the_values(tmp_path_factory, rows):
    """The pass over JSON text has the names, order and types of one over values."""
    path = tmp_path_factory.mktemp("types") / "in.jsonl"
    objects = [", ".join(f'"f{i}": {x}' for i, x in enumerate(row)) for row in rows]
    path.write_text("".join(f"{{{one}}}\n" for one in objects))
    values = infer_other_fields((record.fields for record in json_records(path)), ())
    assert [*infer_other_fields(json_fields(path), ()).types.items()] == [*values.types.items()]


@pytest.mark.parametrize(
    "line", [b'{"a": "\xff"}', b'{"a": ["\xff"]}', b"[1]", b'{"a": 01}', b'{"a": 1', b"3"]
)
def test_both_readers_reject_the_same_lines(tmp_path, line):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a": 1}\n \n' + line + b"\n")
    texts = []
    for reader in (json_records, json_fields):
        with pytest.raises(DataError, match=r"in\.jsonl, line 3") as raised:
            [*reader(path)]
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


def test_a_sniff_reads_a_bounded_number_of_bytes(tmp_path):
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.write(b'{"token_loss_mask": "')
        file.truncate(MOST_SNIFFED * 4)  # one endless line, which takes no room on the disk
    assert detect(path) is None


def test_a_file_without_records_is_an_error(tmp_path):
    for text, message in (
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("[]", "no records"),
    ):
        (tmp_path / "in.jsonl").write_text(text)
        with pytest.raises(DataError, match=message):
            convert(tmp_path / "in.jsonl", tmp_path / "out.parquet", "nemo-rl")
    assert names(tmp_path) == ["in.jsonl"]


@pytest.mark.parametrize("words", [[], ["--from", "jsonl"], ["--from", "verl"]])
def test_an_empty_file_is_an_error_that_says_empty(words, tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    ran = run("convert", tmp_path / "in.jsonl", tmp_path / "out.parquet", *words)
    assert (ran.code, ran.out) == (3, "")
    assert "in.jsonl: the file is empty" in ran.err
    assert names(tmp_path) == ["in.jsonl"]


def test_the_error_for_records_without_fields_says_none(tmp_path):
    path = writers.lines(tmp_path / "in.jsonl", [{}])
    with pytest.raises(DataError, match=r"fields: none$"):
        convert(path, tmp_path / "out.parquet", "jsonl")
    with pytest.raises(DataError, match=r"no field 'x'; fields: none$"):
        convert(path, tmp_path / "out.parquet", "jsonl", ReadOptions({"reward": "x"}))


# Layouts


@st.composite
def responses(draw):
    """A prompt's length, a response's mask that begins with 1, and padding behind."""
    mask = [1, *draw(st.lists(st.integers(0, 1), max_size=8))]
    return draw(st.integers(1, 5)), np.array(mask, np.uint8), draw(st.integers(0, 3))


def cut(name, mask, values, length=None):
    made = layout.response_lists(name, "here", mask, {"values": values}, length)
    return made["response_mask"].tolist(), made["values"].tolist()


@given(responses())
def test_every_layout_returns_the_response(case):
    before, mask, after = case
    values = np.arange(1, len(mask) + 1) / 4
    expected = mask.tolist(), values.tolist()
    full = np.concatenate([np.zeros(before), mask, np.zeros(after)]).astype(np.uint8)
    padded = np.concatenate([np.full(before, 9.0), values, np.full(after, 9.0)])
    length = before + len(mask)
    assert cut("response", mask, values) == expected
    assert cut("padded", full, padded, length) == expected
    assert cut("shifted", full, padded[1:], length) == expected
    ids = {"values": padded[1:], "response_token_ids": np.arange(len(full))}
    itself = layout.response_lists("shifted", "here", full[1:], ids, length)
    assert (itself["response_mask"].tolist(), itself["values"].tolist()) == expected
    assert itself["response_token_ids"].tolist() == [*range(before, length)]
    for name, lists in (("padded", {"values": padded}), ("shifted", ids)):
        given = full if name == "padded" else full[1:]
        said = layout.response_lists(name, "here", given, lists, response=len(mask))
        assert said["values"].tolist() == values.tolist()
    assert cut("left-padded", np.append(np.zeros(before, np.uint8), mask),
               np.append(np.full(before, 9.0), values), len(mask)) == expected  # fmt: skip
    sparse = np.where(mask == 1, values, 0)
    assert cut("compact", full, values[mask == 1], length) == (mask.tolist(), sparse.tolist())


@given(responses())
def test_lists_of_another_length_are_an_error_for_every_layout(case):
    _, mask, _ = case
    for name in ("response", "padded", "left-padded"):
        with pytest.raises(DataError, match=r"here: `values` has .* entries"):
            cut(name, mask, np.zeros(len(mask) + 1))
    with pytest.raises(DataError, match="here: `values` has"):
        cut("compact", mask, np.zeros(int(mask.sum()) + 1))
    with pytest.raises(DataError, match="here: "):
        cut("shifted", mask, np.zeros(len(mask) + 1))
    with pytest.raises(DataError, match="so none is shifted against the mask"):
        cut("shifted", mask, np.zeros(len(mask)))
    with pytest.raises(DataError, match="no list is compact"):
        layout.response_lists("compact", "here", mask, {})


def test_lengths_that_contradict_the_mask_are_an_error():
    mask = np.array([0, 1, 1], np.uint8)
    for length in (2, 4):
        with pytest.raises(DataError, match=f"length is {length}, but"):
            cut("padded", mask, np.zeros(3), length)
    with pytest.raises(DataError, match="length is 1, but"):
        cut("left-padded", mask, np.zeros(3), 1)
    with pytest.raises(DataError, match="mask is 1 at token 0"):
        cut("shifted", np.array([1, 1], np.uint8), np.zeros(1))
    for name, array in (("padded", mask), ("compact", mask), ("shifted", mask)):
        with pytest.raises(DataError, match="`response_length` is 1, but the mask"):
            layout.response_lists(name, "here", array, {}, response=1)
    with pytest.raises(
        DataError, match="the mask ends with 0, but a left-padded response ends the list"
    ):
        cut("left-padded", np.array([0, 1, 0], np.uint8), np.zeros(3))
    with pytest.raises(UsageError, match="did you mean padded"):
        cut("paded", mask, np.zeros(3))


# Keys


def test_the_key_of_a_prompt_does_not_depend_on_the_integer_type():
    assert prompt_key(np.array([1, 2])) == prompt_key(np.array([1, 2], np.int32))
    assert len({prompt_key(np.array(ids)) for ids in ([1, 2], [2, 1], [1], [1, 2, 0])}) == 4


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("train_data_step12.jsonl", 12),
        ("run/step_3/train/traces.jsonl", 3),
        ("step_3/rollout_dump_data.step_40.jsonl", 40),
        ("step=5/x.jsonl", 5),
        ("footsteps_3/x.jsonl", None),
    ],
)
def test_steps_are_read_from_path_names(path, step, tmp_path):
    assert step_of(tmp_path / path) == step


# Dumps as inputs of other commands


def test_parquet_of_responses_is_returned_unchanged(tmp_path):
    path = save(rollout(), tmp_path / "in.parquet")
    with canonical_inputs([path, str(tmp_path), str(tmp_path / "*.parquet")]) as inputs:
        assert inputs.paths == [str(path), str(tmp_path), str(tmp_path / "*.parquet")]
        assert inputs.names == {}


def test_a_directory_of_dumps_becomes_one_of_parquet_files(tmp_path):
    steps(tmp_path / "in" / "run", 1, 2)
    lines = []
    (made,) = convert_inputs([tmp_path / "in"], tmp_path / "staging", lines.append)
    assert names(tmp_path / "staging" / "0") == [
        "run/train_data_step1.parquet", "run/train_data_step2.parquet",
    ]  # fmt: skip
    assert made == str(tmp_path / "staging" / "0")
    (line,) = lines
    assert "train_data_step2.jsonl: 2 dumps, read as nemo-rl, " in line
    assert "it has no log_probs, ref_log_probs, values" in line
    ran = run("advantages", tmp_path / "in", tmp_path / "out", "--estimator", "grpo")
    assert ran.code == 0, ran.err
    assert names(tmp_path / "out") == [
        "run/train_data_step1.parquet", "run/train_data_step2.parquet",
    ]  # fmt: skip


def test_temporary_files_are_always_removed(dump, tmp_path):
    out = tmp_path / "deep" / "er" / "out.parquet"
    ran = run("advantages", dump, out, "--estimator", "gae")
    assert ran.code == 3
    assert f"{dump}: no column for values" in ran.err
    assert names(tmp_path) == ["in/train_data_step7.jsonl"]


def test_the_plan_of_a_dump_is_printed(dump):
    ran = run("advantages", dump, "--plan", "--estimator", "grpo")
    assert ran.code == 0
    assert "12 responses" in ran.out
