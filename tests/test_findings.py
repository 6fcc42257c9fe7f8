"""Each finding: a file made to have it is flagged, a twin that is well is not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rlpost.commands.inspect import app
from rlpost.inspect.facts import inspect
from rlpost.inspect.findings import FINDINGS

GROUPS, SIZE, STEPS = 24, 8, 2
ROWS = GROUPS * SIZE


def healthy(seed=0):
    """Columns of a file without findings: dialogues, lists per row as numpy arrays."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(40, 200, ROWS)
    columns = {
        "prompt_id": [f"prompt-{row // SIZE}" for row in range(ROWS)],
        "step": [row * STEPS // ROWS for row in range(ROWS)],
        "reward": (rng.random(ROWS) < 0.5).astype(np.float64),
        "response": [f"answer {row} {'x' * int(rng.integers(1, 50))}" for row in range(ROWS)],
    }
    masks, old, infer, ref = [], [], [], []
    for length in lengths:
        mask = np.ones(length, np.uint8)
        turn = int(rng.integers(5, length - 20))
        mask[turn : turn + 10] = 0  # a tool's answer, then the policy goes on
        surprise = rng.exponential(0.4, length) + 1e-4 + (mask == 0) * rng.exponential(6, length)
        masks.append(mask)
        old.append((-surprise).astype(np.float32))
        infer.append((-surprise - rng.exponential(0.005, length)).astype(np.float32))
        ref.append((-surprise - rng.exponential(0.05, length)).astype(np.float32))
    lists = {
        "response_mask": masks,
        "old_log_probs": old,
        "infer_log_probs": infer,
        "ref_log_probs": ref,
    }
    return columns | lists


def write(path, columns):
    pq.write_table(pa.table(columns), path, row_group_size=50)
    return path


def of(columns, name):
    return [np.array(values) for values in columns[name]]


def each(columns, name, change):
    """The column with each row changed."""
    return columns | {name: [change(values) for values in of(columns, name)]}


def shift(values):
    """Every value one place later, as when the first token has none."""
    return np.concatenate([values[:1], values[:-1]])


def shift_filled(values):
    return np.concatenate([[np.float32(0)], values[:-1]])


def with_row(columns, name, row, change):
    values = list(columns[name])
    values[row] = change(np.array(values[row]))
    return columns | {name: values}


def at(place, number):
    def change(values):
        values = values.copy()
        values[place] = number
        return values

    return change


def padded(columns, *, longest=256, names=("response_mask", "old_log_probs", "infer_log_probs")):
    """All lists filled with zeros to one length."""
    for name in names:
        columns = each(columns, name, lambda values: np.pad(values, (0, longest - len(values))))
    return {key: value for key, value in columns.items() if key != "ref_log_probs"}


def observations_last(columns):
    """The last tokens are a tool's answer: masked out, but with real log-probs."""
    return each(columns, "response_mask", at(slice(-4, None), 0))


def with_lengths(columns, lengths):
    """All lists cut to these lengths, and texts of their own."""
    for name in ("response_mask", "old_log_probs", "infer_log_probs", "ref_log_probs"):
        rows = zip(of(columns, name), lengths, strict=True)
        columns = columns | {name: [values[:length] for values, length in rows]}
    return columns


def sorted_rewards(columns, *, by_length):
    """Rewards that follow lengths, or the same ones that do not."""
    lengths = np.array([len(values) for values in columns["response_mask"]])
    order = np.argsort(lengths) if by_length else np.random.default_rng(3).permutation(ROWS)
    rewards = np.zeros(ROWS)
    rewards[order] = np.linspace(0, 1, ROWS)
    return columns | {"reward": rewards}


def reward_of_all(columns, reward):
    rewards = np.full(ROWS, reward)
    return columns | {"reward": rewards}


def equal_in(columns, share):
    """Equal rewards in a share of the groups."""
    rewards = np.tile([0.0, 1.0], ROWS // 2)
    for group in range(round(GROUPS * share)):
        rewards[group * SIZE : (group + 1) * SIZE] = group % 2
    return columns | {"reward": rewards}


def noisy(columns, scale):
    rng = np.random.default_rng(5)
    return each(
        columns,
        "infer_log_probs",
        lambda values: np.minimum(values + rng.normal(0, scale, len(values)), 0).astype(np.float32),
    )


def without(columns, *names):
    return {name: values for name, values in columns.items() if name not in names}


def copies(columns, share):
    """A share of the rows have the text of the row before them, in pairs."""
    texts = list(columns["response"])
    for row in range(1, round(ROWS * share), 2):
        texts[row] = texts[row - 1]
    return columns | {"response": texts}


def truncated(columns, share):
    count = round(ROWS * share)
    return columns | {"finish_reason": ["length"] * count + ["stop"] * (ROWS - count)}


def capped(columns, count):
    """All lists cut below 150 tokens, save so many rows of exactly 150."""
    for row in range(count):
        for name in ("response_mask", "old_log_probs", "infer_log_probs", "ref_log_probs"):
            columns = with_row(columns, name, row, lambda values: np.resize(values, 160))
    columns = each(columns, "response_mask", np.ones_like)
    lengths = [min(len(values), 149) for values in columns["response_mask"]]
    lengths = [150 if row < count else length - row % 30 for row, length in enumerate(lengths)]
    return with_lengths(columns, lengths)


BASE = healthy()
ALWAYS_ON_POLICY = BASE | {"ref_log_probs": BASE["old_log_probs"], "step": [0] * ROWS}

# name: (with it, without it)
CASES = {
    "no_reward": (without(BASE, "reward"), BASE),
    "no_groups": (without(BASE, "prompt_id"), BASE),
    "wrong_types": (BASE | {"values": [0.5] * ROWS}, BASE | {"values": BASE["ref_log_probs"]}),
    "null_keys": (BASE | {"prompt_id": [None, *BASE["prompt_id"][1:]]}, BASE),
    "unequal_lengths": (with_row(BASE, "old_log_probs", 17, lambda values: values[:-1]), BASE),
    "padded_lists": (padded(BASE), observations_last(BASE)),
    "shifted_lists": (each(BASE, "infer_log_probs", shift), BASE),
    "mask_not_binary": (with_row(BASE, "response_mask", 4, at(3, 2)), BASE),
    "empty_masks": (with_row(BASE, "response_mask", 4, np.zeros_like), BASE),
    "single_row_groups": (
        BASE | {"prompt_id": [f"row-{row}" for row in range(ROWS)]},
        BASE | {"prompt_id": [f"row-{row if row < 40 else row // 2}" for row in range(ROWS)]},
    ),
    "one_group_per_step": (
        {**healthy(), "prompt_id": ["all"] * ROWS, "step": [0] * ROWS},
        BASE | {"step": [0] * ROWS},
    ),
    "constant_rewards": (reward_of_all(BASE, 0.5), BASE),
    "saturated_rewards": (
        reward_of_all(BASE, 1.0) | {"reward": np.where(np.arange(ROWS) < 4, 0.0, 1.0)},
        reward_of_all(BASE, 1.0) | {"reward": np.where(np.arange(ROWS) < 30, 0.0, 1.0)},
    ),
    "equal_rewards_in_groups": (equal_in(BASE, 0.6), equal_in(BASE, 0.4)),
    "nonfinite_rewards": (
        BASE | {"reward": np.where(np.arange(ROWS) == 9, np.nan, BASE["reward"])},
        BASE,
    ),
    "length_follows_reward": (
        sorted_rewards(BASE, by_length=True),
        sorted_rewards(BASE, by_length=False),
    ),
    "many_truncated": (truncated(BASE, 0.3), truncated(BASE, 0.2)),
    "copied_responses": (copies(BASE, 0.9), copies(BASE, 0.04)),
    "nonfinite_log_probs": (with_row(BASE, "old_log_probs", 3, at(1, -np.inf)), BASE),
    "positive_log_probs": (each(BASE, "old_log_probs", np.exp), BASE),
    "constant_log_probs": (each(BASE, "old_log_probs", np.zeros_like), BASE),
    "same_log_probs": (BASE | {"infer_log_probs": BASE["old_log_probs"]}, ALWAYS_ON_POLICY),
    "engine_mismatch": (noisy(BASE, 0.5), noisy(BASE, 0.01)),
}


def names(path, **options):
    return [finding.name for finding in inspect([path], **options).findings]


def test_a_healthy_file_has_no_finding(tmp_path):
    assert names(write(tmp_path / "a.parquet", BASE)) == []


def test_every_finding_is_tried():
    assert {*CASES, "mixed_types"} == {one.__name__ for one in FINDINGS}


@pytest.mark.parametrize("name", CASES)
def test_a_file_made_to_have_it_is_flagged_and_its_twin_is_not(name, tmp_path):
    bad, well = CASES[name]
    found = inspect([write(tmp_path / "bad.parquet", bad)]).findings
    assert name in [finding.name for finding in found]
    assert name not in names(write(tmp_path / "well.parquet", well))
    finding = next(one for one in found if one.name == name)
    assert finding.count > 0
    assert finding.of >= finding.count
    assert finding.said
    assert finding.advice
    harms = [one.harm for one in found]
    assert harms == sorted(harms, reverse=True)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("null_keys", 0),
        ("unequal_lengths", 17),
        ("mask_not_binary", 4),
        ("empty_masks", 4),
        ("nonfinite_rewards", 9),
        ("nonfinite_log_probs", 3),
    ],
)
def test_evidence_names_the_row(name, row, tmp_path):
    path = write(tmp_path / "bad.parquet", CASES[name][0])
    finding = next(one for one in inspect([path]).findings if one.name == name)
    assert finding.count == 1
    assert [(one.file, one.row) for one in finding.evidence] == [(str(path), row)]


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(each(BASE, "old_log_probs", shift), id="old against infer and mask"),
        pytest.param(each(BASE, "old_log_probs", lambda x: shift(x[::-1])[::-1]), id="earlier"),
        pytest.param(
            without(each(BASE, "old_log_probs", shift), "infer_log_probs", "ref_log_probs"),
            id="against the mask alone",
        ),
        pytest.param(
            without(
                BASE | {"response_mask": [shift(x) for x in of(BASE, "response_mask")]},
                "infer_log_probs",
                "ref_log_probs",
            ),
            id="the mask",
        ),
        pytest.param(
            without(
                each(BASE, "old_log_probs", shift_filled),
                "infer_log_probs",
                "ref_log_probs",
                "response_mask",
            ),
            id="a filler first, no mask",
        ),
    ],
)
def test_shifts_are_found_in_every_column(columns, tmp_path):
    assert "shifted_lists" in names(write(tmp_path / "a.parquet", columns))


def test_tokens_of_probability_one_are_no_fillers(tmp_path):
    """Engines give exactly 0 where the policy is certain: often the last token, and others."""
    certain = each(BASE, "old_log_probs", lambda x: np.where(np.arange(len(x)) % 2, x, 0))
    certain = each(certain, "old_log_probs", at(-1, 0.0))
    columns = without(certain, "infer_log_probs", "ref_log_probs", "response_mask")
    assert "shifted_lists" not in names(write(tmp_path / "a.parquet", columns))


def test_padding_without_a_mask_is_found(tmp_path):
    columns = without(padded(BASE), "response_mask", "infer_log_probs")
    assert "padded_lists" in names(write(tmp_path / "a.parquet", columns))


def test_responses_at_one_longest_length_look_truncated(tmp_path):
    many, few = capped(BASE, 20), capped(BASE, 1)
    assert "many_truncated" in names(write(tmp_path / "many.parquet", many))
    assert "many_truncated" not in names(write(tmp_path / "few.parquet", few))


def test_rows_dumped_twice_are_found_without_texts(tmp_path):
    columns = without(BASE, "response")
    twice = {name: [*values, *values] for name, values in columns.items()}
    assert "copied_responses" in names(write(tmp_path / "twice.parquet", twice))
    assert "copied_responses" not in names(write(tmp_path / "once.parquet", columns))


def test_rows_without_a_response_are_no_copies(tmp_path):
    nothing = [np.zeros(0, np.float32)] * ROWS
    columns = without(BASE, "response", "ref_log_probs", "infer_log_probs")
    columns |= {"response_mask": nothing, "old_log_probs": nothing}
    assert names(write(tmp_path / "a.parquet", columns)) == ["empty_masks"]


def test_a_few_long_copies_are_found_and_as_many_short_ones_are_not(tmp_path):
    long = copies(BASE, 0.3)
    short = with_lengths(long, [20] * ROWS)
    assert "copied_responses" in names(write(tmp_path / "long.parquet", long))
    assert "copied_responses" not in names(write(tmp_path / "short.parquet", short))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("reward", ["good"] * ROWS),
        ("response_mask", ["111"] * ROWS),
        ("prompt_id", [["a"]] * ROWS),
        ("old_log_probs", [["-1"]] * ROWS),
        ("finish_reason", [{"type": "stop"}] * ROWS),
    ],
)
def test_what_cannot_be_read_is_told_and_the_rest_is_read(name, values, tmp_path):
    found = inspect([write(tmp_path / "a.parquet", BASE | {name: values})])
    assert found.findings[0].name == "wrong_types"
    assert f"`{name}`" in found.findings[0].said
    assert found.responses == ROWS
    assert found.lengths is not None


def test_one_column_for_two_roles_is_found(tmp_path):
    path = write(tmp_path / "a.parquet", without(BASE, "infer_log_probs"))
    mapped = {"infer_log_probs": "old_log_probs"}
    (finding,) = inspect([path], columns_map=mapped).findings
    assert finding.name == "same_log_probs"
    assert "same column" in finding.said


def test_one_column_of_a_wrong_type_for_two_roles_is_told_of(tmp_path):
    path = write(tmp_path / "a.parquet", BASE)
    mapped = {"values": "response", "token_rewards": "response"}
    (finding,) = inspect([path], columns_map=mapped).findings
    assert finding.said.count("`response` is string") == 2


@pytest.mark.parametrize(
    ("kind", "flagged"),
    [
        (pa.int64(), True),
        (pa.null(), True),
        (None, True),
        (pa.large_string(), False),
        (pa.dictionary(pa.int32(), pa.string()), False),
    ],
)
def test_types_that_differ_between_files_are_found(kind, flagged, tmp_path):
    table = pa.table(BASE)
    pq.write_table(table, tmp_path / "a.parquet")
    place = table.schema.get_field_index("prompt_id")
    if kind is None:
        table = table.drop_columns(["prompt_id"])
    elif pa.types.is_integer(kind):
        table = table.set_column(place, "prompt_id", pa.array(range(ROWS), kind))
    elif pa.types.is_null(kind):
        table = table.set_column(place, "prompt_id", pa.nulls(ROWS))
    else:
        table = table.set_column(place, "prompt_id", table.column("prompt_id").cast(kind))
    pq.write_table(table, tmp_path / "b.parquet")
    assert ("mixed_types" in names(tmp_path)) is flagged


def test_number_lists_of_two_precisions_are_read_and_told(tmp_path):
    write(tmp_path / "a.parquet", BASE)
    wide = each(BASE, "old_log_probs", lambda values: values.astype(np.float64))
    write(tmp_path / "b.parquet", wide)
    found = inspect([tmp_path])
    assert [finding.name for finding in found.findings if finding.name == "mixed_types"]
    assert found.responses == 2 * ROWS


def test_strict_exits_with_1_where_there_are_findings(tmp_path):
    run = CliRunner().invoke
    bad = str(write(tmp_path / "bad.parquet", CASES["constant_rewards"][0]))
    well = str(write(tmp_path / "well.parquet", BASE))
    assert run(app, [bad]).exit_code == 0
    assert run(app, [bad, "--strict"]).exit_code == 1
    assert run(app, [well, "--strict"]).exit_code == 0
    assert "constant_rewards" in run(app, [bad]).stdout
    assert "no findings" in run(app, [well]).stdout
