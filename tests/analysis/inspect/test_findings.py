"""Each finding: a file with the problem has it, a similar file without the problem does not."""

from __future__ import annotations

import math
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import loads, run
from test_thresholds import PAIRS
from typer.testing import CliRunner

from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.inspect.findings import FINDINGS
from rlpost.analysis.inspect.findings.groups import TURNS
from rlpost.cli.app import app_of

GROUPS, SIZE, STEPS = 24, 8, 2
ROWS = GROUPS * SIZE


def healthy(seed=0):
    """Columns of a file without findings: dialogues, lists per row as numpy arrays."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(40, 100, ROWS)
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
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, row_group_size=50)
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


def without(columns, *names):
    return {name: values for name, values in columns.items() if name not in names}


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


def empty(columns):
    """The same columns without a row."""
    table = pa.table(columns)
    return {name: table.column(name).slice(0, 0) for name in table.column_names}


def asked(columns, *, by="group"):
    """With the prompts' texts: one for each group, for every other row, or for two groups."""
    group = [int(name.partition("-")[2]) for name in columns["prompt_id"]]
    number = {
        "group": group,
        "row": [row % 2 for row in range(ROWS)],
        "pair": [g // 2 for g in group],
    }
    return columns | {"prompt": [f"question {one}?" for one in number[by]]}


def with_turns(columns, size=2):
    """Rows of a group are rollouts of so many turns."""
    ids = [f"{name}/{row % SIZE // size}" for row, name in enumerate(columns["prompt_id"])]
    return columns | {"traj_id": ids, "turn": [row % size for row in range(ROWS)]}


def with_outcome(columns):
    """All rows of a rollout have the reward of its first."""
    rewards = [columns["reward"][row - row % 2] for row in range(ROWS)]
    return columns | {"reward": rewards}


def crashed(columns, reward):
    """Eight rows have no token, and a reward."""
    rewards, lengths = np.array(columns["reward"]), [len(x) for x in columns["response_mask"]]
    for row in range(0, ROWS, SIZE * 3):
        lengths[row], rewards[row] = 0, reward
    return with_lengths(columns, lengths) | {"reward": rewards}


def taken(columns, rows):
    """These rows."""
    return {name: [values[row] for row in rows] for name, values in columns.items()}


BASE = healthy()
POLICIES = ("old_log_probs", "infer_log_probs", "ref_log_probs")
TEXTS = ("prompt_id", "step", "reward", "response")
ALWAYS_ON_POLICY = BASE | {"ref_log_probs": BASE["old_log_probs"], "step": [0] * ROWS}


def inverted(columns):
    """Return the columns with advantages of a trainer that minimises rewards."""
    rewards = np.asarray(columns["reward"]).reshape(-1, SIZE)
    return {**columns, "advantage": (rewards.mean(1, keepdims=True) - rewards).reshape(-1)}


def rows_of(found):
    return [place.row for place in found.rows]


def left(columns, *, longest=256):
    """All lists filled with zeros before the response."""
    for name in ("response_mask", "old_log_probs", "infer_log_probs"):
        columns = each(columns, name, lambda values: np.pad(values, (longest - len(values), 0)))
    return without(columns, "ref_log_probs")


def padded_in_parts(longest):
    """Zeros in all columns up to the longest of a few responses."""
    sizes = [len(values) for values in BASE["response_mask"]]
    common = [max(sizes[row // longest * longest :][:longest]) for row in range(ROWS)]
    columns = without(BASE, "response_mask")
    for name in ("old_log_probs", "infer_log_probs", "ref_log_probs"):
        rows = zip(columns[name], common, strict=True)
        columns = columns | {name: [np.pad(x, (0, size - len(x))) for x, size in rows]}
    return columns


def with_values(columns, name, **rows):
    """The column with other values in some rows, which are called `_3` and the like."""
    values = list(columns[name])
    for row, value in rows.items():
        values[int(row[1:])] = value
    return columns | {name: values}


def shorter(*places):
    """Lists of some rows of some columns lack their last number."""
    columns = BASE
    for row, name in places:
        columns = with_row(columns, f"{name}_log_probs", row, lambda values: values[:-1])
    return columns


def padded_where_masked(side):
    """All lists filled to one length on a side, where the mask is 0."""
    columns = without(BASE, "ref_log_probs")
    for name in ("response_mask", "old_log_probs", "infer_log_probs"):
        columns = each(
            columns, name, lambda x: np.pad(x, [((256 - len(x)) * (end == side)) for end in (0, 1)])
        )
    return columns


def halves(columns, name, values):
    """The column, in the rows of the second step, with other values."""
    rows = zip(columns["step"], columns[name], values, strict=True)
    return columns | {name: [new if step else old for step, old, new in rows]}


ALONE = ("infer_log_probs", "ref_log_probs")
STEP_1 = "in step 1 (1 of 2 steps)"
IDS = [np.arange(len(values), dtype=np.int32) for values in BASE["old_log_probs"]]
OUTCOMES = with_outcome(with_turns(BASE))
ROLLOUT = {"columns_map": {"rollout": "traj_id"}}
LENGTH = len(BASE["old_log_probs"][3])
UNREADABLE = {
    "reward": ["good"] * ROWS, "response_mask": ["111"] * ROWS, "prompt_id": [b"a"] * ROWS,
    "old_log_probs": [["-1"]] * ROWS, "finish_reason": [["stop"]] * ROWS,
}  # fmt: skip
FAULTS = {
    "no rows": ("no_rows", empty(BASE), {}),
    "values that are NaN": (
        "nonfinite",
        BASE | {"values": with_row(BASE, "ref_log_probs", 3, at(1, np.nan))["ref_log_probs"]},
        {"text": "`values` (1 NaN) is not finite in 1 of 192 responses"},
    ),
    "a number in place of a list": (
        "column_types", BASE | {"values": [0.5] * ROWS},
        {"text": "`values` is double; the role values needs a list of numbers"},
    ),
    "versions of spans": (
        "column_types", BASE | {"policy_version": [[{"start": 0, "version": 3}]] * ROWS},
        {"text": "`policy_version` is list<element: struct<start: int64"},
    ),
    "token ids as log-probs": (
        "column_types", BASE | {"old_log_probs": IDS, "infer_log_probs": IDS},
        {"text": "the role old_log_probs needs a list of floats per row"},
    ),
    "types over files": (
        "column_types", [BASE, BASE | {"reward": [str(reward) for reward in BASE["reward"]]}],
        {"text": "`reward` is double, but string in 1.parquet; the role reward needs a number per "
         "row: not read from any file", "columns": ("reward",), "option": "--map reward=COLUMN"},
    ),
    "a role that a file lacks": (
        "column_types", [BASE, without(BASE, "reward")],
        {"text": "`reward` is double, but missing in 1.parquet; it serves the role reward: not "
         "read from any file", "level": "error", "option": ""},
    ),
    "ids of other types": (
        "column_types", [BASE, BASE | {"prompt_id": range(ROWS)}], {"level": "error"}
    ),
    **{
        f"an unreadable {name}": ("column_types", BASE | {name: values}, {"text": f"`{name}`"})
        for name, values in UNREADABLE.items()
    },
    "a null key": (
        "unusable_keys", BASE | {"prompt_id": [None, *BASE["prompt_id"][1:]]},
        {"text": "no `prompt_id` in 1 of 192 responses", "rows": [0]},
    ),
    "fractions as ids": (
        "unusable_keys", BASE | {"prompt_id": [row // SIZE + 0.5 for row in range(ROWS)]},
        {"text": "`prompt_id` is double, and in 192 of 192 responses"},
    ),
    "NaN for null": (
        "unusable_keys",
        BASE | {"prompt_id": [math.nan, *(float(row // SIZE) for row in range(1, ROWS))]},
        {"text": "no `prompt_id` in 1 of 192 responses"},
    ),
    "lengths of 0": (
        "empty_masks", {**{name: BASE[name] for name in TEXTS}, "response_length": [0] * ROWS},
        {"text": "have no policy token: `response_length` is 0"},
    ),
    "constant rewards": (
        "equal_rewards", reward_of_all(BASE, 0.5), {"text": "all 192 rewards are 0.5"}
    ),
    "a mask of failures": (
        "many_failures", BASE | {"mask_sample": [row % 3 == 0 for row in range(ROWS)]},
        {"text": "64 of 192 responses (33.3 %) failed"},
    ),
    "zeros without answers": ("many_failures", crashed(BASE, 0.0), {"text": "8 without tokens"}),
    "aborted responses": (
        "many_failures",
        BASE | {"reward": [float(row % 3 > 0) for row in range(ROWS)],
                "finish_reason": ["aborted" if row % 12 == 0 else "stop" for row in range(ROWS)]},
        {"text": "16 of 192 responses (8.3 %) with reward 0 look like failures"},
    ),
    "unknown finish reasons": (
        "unknown_finish_reasons", BASE | {"finish_reason": ["stop", "eaten"] * (ROWS // 2)}, {}
    ),
    "recorded advantages": ("recorded_advantages", inverted(BASE), {}),
    "a row again": (
        "written_twice", taken(with_turns(BASE, 1), [*range(ROWS), 5]),
        {"text": "1 of 193 rows (0.5 %) are there twice"},
    ),
    "filled log-probs": (
        "not_log_probs",
        BASE | {"infer_log_probs": [
            x * np.float32(row % 8 > 0) for row, x in enumerate(BASE["infer_log_probs"])
        ]},
        {"text": "`infer_log_probs` is exactly 0 in all policy tokens of"},
    ),
    "ids of another length": (
        "unequal_lengths", BASE | {"response_token_ids": [
            [1] * (len(x) + (row == 3)) for row, x in enumerate(BASE["response_mask"])
        ]},
        {"text": "`response_token_ids` has"},
    ),
    "padded lists": ("padded_lists", padded(BASE), {}),
    "an inverted mask": (
        "mask_values", each(BASE, "response_mask", lambda mask: 1 - mask),
        {"text": "192 of 192 responses (100 %) begin and end with observa"},
    ),
    "domains in a group": (
        "group_domains", BASE | {"data_source": [str(row % 2) for row in range(ROWS)]},
        {"text": "24 of 24 groups by `prompt_id` have responses of several `d"},
    ),
    "files in a group": (
        "group_files", [without(BASE, "step")] * 2,
        {"text": "24 of 24 groups by `prompt_id` have responses of several of 2 files"},
    ),
    "messages as prompts": (
        "group_prompts",
        BASE | {"prompt": [[{"role": "user", "content": f"{row}?"}] for row in range(ROWS)]},
        {"text": "24 of 24 groups with several responses (100 %) have"},
    ),
    "one prompt for all steps": (
        "group_key", BASE | {"prompt_id": [""] * ROWS},
        {"text": "of one prompt: `prompt_id` is '' in all 2 steps"},
    ),
    "prompts of tokens": (
        "group_prompts", BASE | {"prompt_tokens": [[row % 2, 7] for row in range(ROWS)]}, {}
    ),
    "old log-probs, shifted": ("shifted_lists", each(BASE, "old_log_probs", shift), {}),
    "old log-probs, shifted earlier": (
        "shifted_lists", each(BASE, "old_log_probs", lambda x: shift(x[::-1])[::-1]), {}
    ),
    "shifted against the mask alone": (
        "shifted_lists", without(each(BASE, "old_log_probs", shift), *ALONE), {}
    ),
    "a shifted mask": (
        "shifted_lists", without(each(BASE, "response_mask", shift), *ALONE), {}
    ),
    "a filler first, no mask": (
        "shifted_lists",
        without(each(BASE, "old_log_probs", shift_filled), *ALONE, "response_mask"),
        {},
    ),
    "a shift, and a difference larger than all others": (
        "shifted_lists",
        with_row(each(BASE, "infer_log_probs", shift), "infer_log_probs", 4, at(3, -5000.0)),
        {},
    ),
    "padding on the left": ("padded_lists", left(BASE), {}),
    "padding on the left, no mask": ("padded_lists", without(left(BASE), "response_mask"), {}),
    "padding to the longest of 4": ("padded_lists", padded_in_parts(4), {}),
    "many of the maximum length": ("many_truncated", capped(BASE, 20), {}),
    "groups over two steps": (
        "unequal_groups", BASE | {"step": [*BASE["step"][:-3], 9, 9, 9]},
        {"text": "of 25 prompt groups, 2 have fewer", "option": "--map batch=none"},
    ),
    "groups with more": (
        "unequal_groups", taken(BASE, [*range(ROWS), 0, 1]),
        {"text": "of 24 prompt groups, 1 have more than the 8 responses of most (2 too many)",
         "option": ""},
    ),
    **{
        f"a fill value of {name}": (
            "shifted_lists", each(BASE, name, at(-1, 0.0)), {"level": "error", "columns": (name,)}
        )
        for name in ("old_log_probs", "infer_log_probs", "ref_log_probs")
    },
    "mixed prompts": (
        "group_prompts", asked(BASE, by="row"), {"level": "error", "rows": [0, 1, 8, 9, 16]}
    ),
    "one other prompt": (
        "group_prompts", with_values(asked(BASE), "prompt", _3="another question?"),
        {"level": "warning", "text": "1 of 24 groups with", "rows": [0, 3],
         "columns": ("prompt_id", "prompt")},
    ),
    "probabilities": ("not_log_probs", each(BASE, "old_log_probs", np.exp), {"text": "probab"}),
    "NLL": ("not_log_probs", each(BASE, "old_log_probs", np.negative), {"text": "NLL"}),
    "logits": ("not_log_probs", each(BASE, "old_log_probs", lambda x: x + 3), {"text": "logits"}),
    "one above 0": (
        "not_log_probs", with_row(BASE, "old_log_probs", 30, at(2, 0.5)),
        {"text": "1 of ", "rows": [30]},
    ),
    "a shift in a step": (
        "shifted_lists", halves(BASE, "infer_log_probs", [*map(shift, BASE["infer_log_probs"])]),
        {"text": STEP_1, "rows": [96, 97, 98, 99, 100]},
    ),
    "a mismatch in a step": (
        "engine_mismatch",
        halves(BASE, "infer_log_probs", [x * 1.5 for x in BASE["infer_log_probs"]]),
        {"text": STEP_1},
    ),
    "lists of other lengths": (
        "unequal_lengths", shorter((3, "old"), (5, "old"), (5, "ref"), (9, "ref")),
        {"rows": [3, 5, 9],
         "text": "`old_log_probs` (in 2), `ref_log_probs` (in 2) and `response_mask` differ in "
         "length in 3 of 192 responses (1.6 %), the first with `response_mask` "
         f"{LENGTH}, `old_log_probs` {LENGTH - 1}"},
    ),
    "no list": (
        "unequal_lengths", with_values(BASE, "old_log_probs", _0=None),
        {"text": "`old_log_probs` null"},
    ),
    "no mask in a row": (
        "empty_masks", with_values(BASE, "response_mask", _0=None), {"text": "or null (1)"}
    ),
    "numbers by kind": (
        "nonfinite",
        with_row(with_values(BASE, "old_log_probs", _4=[None, *BASE["old_log_probs"][4][1:]]),
                 "infer_log_probs", 9, at(0, -np.inf)),
        {"rows": [4, 9], "text": "`old_log_probs` (1 null), `infer_log_probs` (1 -inf) are not "
         "finite in 2 of 192 responses"},
    ),
    "rewards by kind": (
        "nonfinite", with_values(BASE, "reward", _0=None, _1=np.nan, _2=np.inf),
        {"rows": [0, 1, 2],
         "text": "`reward` (1 null, 1 NaN, 1 ±inf) is not finite in 3 of 192 responses"},
    ),
    "a null in a mask": (
        "mask_values", with_values(BASE, "response_mask", _2=[1, 1, 1, None]),
        {"text": "such as null, in 1 of 192 responses"},
    ),
    "padding where the mask is 0, at the end": (
        "padded_lists", padded_where_masked(1),
        {"level": "warning", "text": "at masked tokens"},
    ),
    "padding where the mask is 0, at the start": (
        "padded_lists", padded_where_masked(0), {"level": "warning", "text": "at masked tokens"}
    ),
    "padding where the mask is 1": (
        "padded_lists", each(padded_where_masked(1), "response_mask", np.ones_like),
        {"level": "error"},
    ),
    "a name like a reward": (
        "missing_roles",
        without(BASE, "reward") | {"rewards": BASE["reward"], "seconds": [1.0] * ROWS},
        {"option": "--map reward=rewards"},
    ),
    "no reward, no group": (
        "missing_roles", without(BASE, "reward", "prompt_id"),
        {"option": "--map reward=COLUMN", "text": "; no column has the role group (usual names: "},
    ),
    "the longest rows": (
        "length_follows_reward", sorted_rewards(BASE, by_length=True),
        {"rows": np.argsort([-int(x.sum()) for x in BASE["response_mask"]], kind="stable")[:5]},
    ),
    "the first rows": (
        "same_log_probs", BASE | {"infer_log_probs": BASE["old_log_probs"]},
        {"rows": [0, 1, 2, 3, 4]},
    ),
    "turns without ids": (
        "rows_are_turns", without(with_turns(BASE), "traj_id"),
        {"text": "192 of 192 responses (", "option": "--map rollout=COLUMN"},
    ),
    "ids of prompts": (
        "rows_are_turns", BASE | {"traj_id": BASE["prompt_id"]}, {"advice": "--unit row"}
    ),
    "rewards of a rollout": (
        "differing_rollout_rewards", with_values(OUTCOMES, "reward", _5=7.0),
        {"options": ROLLOUT, "rows": [4, 5], "text": "in 1 rollout: "},
    ),
    "a rollout without an id": (
        "unusable_keys", with_values(OUTCOMES, "traj_id", _0=None),
        {"options": ROLLOUT, "text": "`traj_id` in 1 of"},
    ),
    "a finite reward beside NaN": (
        "nonfinite", with_values(OUTCOMES, "reward", _5=np.nan),
        {"options": ROLLOUT | {"rollout_reward": "last"},
         "text": "`reward` (1 NaN) is not finite in 2 of "},
    ),
}  # fmt: skip
"""A file, the check, and parts of what it says of it."""
CLEAN = {
    "a column of nulls": ("column_types", [BASE, BASE | {"prompt_id": pa.nulls(ROWS)}], {}),
    **{
        f"ids as {kind}": (
            "column_types", [BASE, BASE | {"prompt_id": pa.array(BASE["prompt_id"]).cast(kind)}], {}
        )
        for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string()))
    },
    "observations last": ("padded_lists", observations_last(BASE), {}),
    "a difference larger than all others": (
        "shifted_lists", with_row(BASE, "infer_log_probs", 4, at(3, -5000.0)), {}
    ),
    "no padding": ("padded_lists", padded_in_parts(1), {}),
    "log-probs of 0 at the start": (
        "padded_lists",
        without(each(BASE, "old_log_probs", at(slice(0, 4), 0.0)), "response_mask", *ALONE),
        {},
    ),
    "on policy": ("same_log_probs", ALWAYS_ON_POLICY, {}),
    "versions as text": ("column_types", BASE | {"policy_version": ["v3"] * ROWS}, {}),
    "ids as floats": (
        "unusable_keys", BASE | {"prompt_id": [float(row // SIZE) for row in range(ROWS)]}, {}
    ),
    "rewards without answers": ("many_failures", crashed(BASE, 1.0), {}),
    "one of the maximum length": ("many_truncated", capped(BASE, 1), {}),
    "domains of groups": (
        "group_domains", BASE | {"data_source": [str(row // SIZE % 2) for row in range(ROWS)]}, {}
    ),
    "groups of files": (
        "group_files",
        [
            without(BASE, "step"),
            without(BASE, "step") | {"prompt_id": [f"b{row // SIZE}" for row in range(ROWS)]},
        ],
        {},
    ),
    "prompts of tokens": (
        "group_prompts", BASE | {"prompt_tokens": [[row // SIZE, 7] for row in range(ROWS)]}, {}
    ),
    "messages of groups": (
        "group_prompts",
        BASE
        | {"prompt": [[{"role": "user", "content": f"{row // SIZE}?"}] for row in range(ROWS)]},
        {},
    ),
    "later turns of dialogues": (
        "group_prompts",
        asked(BASE, by="row") | {"turn": [row % 2 for row in range(ROWS)]},
        {},
    ),
    "rows that were chosen": (
        "rows_are_turns", BASE | {"traj_id": BASE["prompt_id"]}, {"unit": "row"}
    ),
    "rollouts that were chosen": (
        "rows_are_turns", BASE | {"traj_id": BASE["prompt_id"]}, {"unit": "rollout"}
    ),
    "turns of rollouts": ("rows_are_turns", with_turns(BASE), {}),
    "a reward for all rows": ("differing_rollout_rewards", OUTCOMES, ROLLOUT),
    "a reward that was chosen": (
        "differing_rollout_rewards",
        with_values(OUTCOMES, "reward", _5=7.0),
        ROLLOUT | {"rollout_reward": "last"},
    ),
}  # fmt: skip
"""A file, a check that runs and finds nothing, and options."""


def facts_of(folder, columns, **options):
    """The facts of a file of columns, or of several."""
    parts = columns if isinstance(columns, list) else [columns]
    for number, part in enumerate(parts):
        write(folder / f"{number}.parquet", part)
    return inspect([folder], **options)


@pytest.mark.parametrize("case", FAULTS)
def test_a_finding_says_where_how_much_and_what_to_do(case, tmp_path):
    name, columns, expected = FAULTS[case]
    findings = facts_of(tmp_path, columns, **expected.get("options", {})).findings
    found = next(item for item in findings if item.check == name)
    assert expected.get("text", "") in found.text
    assert expected.get("advice", "") in found.advice
    for part in ("level", "option", "columns"):
        assert getattr(found, part) == expected.get(part, getattr(found, part))
    assert rows_of(found) == [*expected.get("rows", rows_of(found))]
    assert found.option in found.advice
    assert found.level in FINDINGS[name].severity
    levels = [item.level for item in findings]
    assert levels == sorted(levels)  # errors first


@pytest.mark.parametrize("case", CLEAN)
def test_a_similar_file_has_no_finding(case, tmp_path):
    name, columns, options = CLEAN[case]
    facts = facts_of(tmp_path, columns, **options)
    assert name not in [item.check for item in facts.findings]
    assert [run.not_run for run in facts.checks if run.name == name] in ([None], [TURNS])


def test_each_check_has_a_fault():
    checks = {name for name, *_ in FAULTS.values()}
    assert checks | {name.partition(" ")[0] for name, *_ in PAIRS.values()} == {*FINDINGS}


def test_a_healthy_file_has_no_finding(tmp_path):
    assert facts_of(tmp_path, BASE).findings == []


def test_every_check_has_a_meaning_in_one_sentence_and_advice():
    table = run("list", "checks").out
    for name, check in FINDINGS.items():
        assert check.name == name
        assert re.fullmatch(r"[A-Z`][^.]+(?:0\.5[^.]+)?\.", check.meaning), check.meaning
        assert check.name in table
        assert check.advice, f"{name} has no paragraph on why it matters and what to do"
    shown = " ".join(run("list", "checks", name).out.split())
    assert check.meaning in shown
    assert check.advice in shown


def runs(path, **options):
    """Why each check did not run; None for one that ran."""
    return {one.name: one.not_run for one in inspect([path], **options).checks}


def test_checks_without_their_columns_did_not_run(tmp_path):
    ran = runs(write(tmp_path / "a.parquet", {"other": range(ROWS)}))
    for name, check in FINDINGS.items():
        why = f"no column for {check.needs[0]}" if check.needs else None
        assert ran[name] == why, name


def test_checks_of_a_column_with_a_wrong_type_do_not_run(tmp_path):
    wrong = write(tmp_path / "b.parquet", BASE | {"old_log_probs": ["x"] * ROWS})
    assert runs(wrong)["engine_mismatch"] == "`old_log_probs` has a wrong type"


@pytest.mark.parametrize(
    ("name", "columns", "why"),
    [
        ("group_prompts", asked(BASE) | {"prompt_id": range(ROWS)}, "no group has several"),
        ("equal_rewards", BASE | {"reward": [np.nan] * ROWS}, "fewer than 2 finite rewards"),
        ("length_follows_reward", reward_of_all(BASE, 0.1), "all equal"),
        ("engine_mismatch", each(BASE, "old_log_probs", lambda x: x[:-1]), "unequal lengths"),
        (
            "unequal_lengths",
            without(BASE, *POLICIES),
            "no list to compare with `response_mask`",
        ),
        ("same_log_probs", {name: rows[:1] for name, rows in BASE.items()}, None),
        ("not_log_probs", with_lengths(BASE, [0] * ROWS), "no policy token counts"),
        ("group_prompts", asked(with_turns(BASE), by="row"), "rows are turns"),
        ("unequal_groups", without(with_turns(BASE), "traj_id"), "rows are turns"),
        ("unequal_groups", BASE | {"prompt_id": range(ROWS)}, "no size is that of most"),
    ],
)
def test_a_check_with_too_little_to_check_did_not_run(name, columns, why, tmp_path):
    reason = runs(write(tmp_path / "a.parquet", columns))[name]
    assert reason is None if why is None else why in reason


def test_a_check_of_an_input_has_all_its_rows_and_its_severity(tmp_path):
    columns = BASE
    for row in range(20, 32):
        columns = with_row(columns, "old_log_probs", row, lambda values: values[:-1])
    path = write(tmp_path / "a.parquet", columns)
    shown = CliRunner().invoke(app_of("inspect"), [str(path), "--about", "unequal_lengths"]).stdout
    for row in range(20, 32):
        assert re.search(f"{path}:{row}$", shown, re.MULTILINE)
    assert shown.splitlines()[-2].startswith("✗ ")
    not_run = CliRunner().invoke(app_of("inspect"), [str(path), "--about", "shared_prefixes"])
    assert "did not run: no column for rollout ids" in not_run.stdout
    well = CliRunner().invoke(app_of("inspect"), [str(path), "--about", "empty_masks"]).stdout
    assert well.splitlines()[-1].startswith("✓ ")
    listed = CliRunner().invoke(
        app_of("inspect"), [str(path), "--about", "unequal_lengths", "--format", "json"]
    )
    entry = loads(listed.stdout)
    assert (entry["not_run"], len(entry["found"]["rows"])) == (None, 12)


def certain(columns, places, values=(0.0, 0.0, 0.0)):
    """The policy is certain of the tokens at these places, in all columns of log-probs."""
    for name, value in zip(POLICIES, values, strict=True):
        columns = each(columns, name, at(places, value)) if name in columns else columns
    return columns


def segments(mask):
    """The first and last token of each run of equal numbers."""
    ends = np.flatnonzero(np.diff(mask.astype(int)))
    return np.concatenate([[0], ends + 1, ends, [len(mask) - 1]])


def zero_observations(columns, *, ends=False):
    """Observations without log-probs; with `ends`, the policy is certain of its turns' ends."""
    masks = of(columns, "response_mask")
    for name in POLICIES:
        rows = [np.where(mask == 1, x, 0) for x, mask in zip(columns[name], masks, strict=True)]
        for row, mask in zip(rows, masks, strict=True):
            row[segments(mask) if ends else []] = 0
        columns = columns | {name: [row.astype(np.float32) for row in rows]}
    return columns


BARE = without(BASE, "response_mask")


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(certain(BASE, 0), id="a forced first token"),
        pytest.param(certain(BARE, slice(-3, None)), id="several at the end, no mask"),
        pytest.param(certain(BASE, [0, -1], (0.0, -1e-6, -1e-5)), id="up to rounding"),
        pytest.param(certain(BASE, [0, -1], (0.0, -1e-6, -1.2)), id="not of the reference"),
        pytest.param(zero_observations(BASE, ends=True), id="ends of turns, no observations"),
        pytest.param(zero_observations(observations_last(BASE)), id="a tool's answer last"),
        pytest.param(
            without(certain(BARE, slice(-2, None)), *POLICIES[1:]) | {"values": BASE[POLICIES[1]]},
            id="one column",
        ),
    ],
)
def test_tokens_of_which_every_policy_is_certain_are_neither_shift_nor_padding(columns, tmp_path):
    found = inspect([write(tmp_path / "a.parquet", columns)]).findings
    alone = sum(name in columns for name in POLICIES) == 1
    assert [(one.check, one.level) for one in found] == [("shifted_lists", "warning")] * alone


def test_rows_without_a_response_are_empty(tmp_path):
    nothing = [np.zeros(0, np.float32)] * ROWS
    columns = without(BASE, "response", "ref_log_probs", "infer_log_probs")
    columns |= {"response_mask": nothing, "old_log_probs": nothing}
    findings = facts_of(tmp_path, columns).findings
    assert [finding.check for finding in findings] == ["empty_masks"]


def test_fail_on_exits_with_1_on_findings_of_this_severity_or_worse_but_ignored_ones(tmp_path):
    run = CliRunner().invoke
    bad = str(write(tmp_path / "bad.parquet", truncated(BASE, 0.3)))
    for words, code in (([], 0), (["error"], 0), (["warning"], 1), (["error", "warning"], 1)):
        flags = [word for severity in words for word in ("--fail-on", severity)]
        assert run(app_of("inspect"), [bad, "-q", *flags]).exit_code == code
    worse = str(write(tmp_path / "worse.parquet", reward_of_all(BASE, 0.5)))
    assert run(app_of("inspect"), [worse, "--fail-on", "error"]).exit_code == 1
    assert run(app_of("inspect"), [bad, "--fail-on", "note"]).exit_code == 2
    ran = run(
        app_of("inspect"),
        [bad, "--ignore", "many_truncated", "--fail-on", "warning", "--format", "json"],
    )
    assert ran.exit_code == 0
    (check,) = (x for x in loads(ran.stdout)["checks"] if x["name"] == "many_truncated")
    assert check["not_run"] == "ignored with --ignore"


def test_quiet_prints_a_line_for_each_finding_and_keeps_json(tmp_path):
    bad = str(write(tmp_path / "bad.parquet", truncated(reward_of_all(BASE, 0.5), 0.3)))
    run = CliRunner().invoke
    first, second, *rest = run(app_of("inspect"), [bad, "-q"]).stdout.splitlines()
    assert first.startswith("error: equal_rewards: all 192 rewards are 0.5")
    assert second.startswith("warning: no_signal: ")
    assert [line.split(": ")[:2] for line in rest] == [["warning", "many_truncated"]]
    well = str(write(tmp_path / "well.parquet", BASE))
    assert run(app_of("inspect"), [well, "-q"]).output == ""
    ran = run(app_of("inspect"), [bad, "-q", "--format", "json"])
    assert loads(ran.stdout)["findings"]
    assert run(app_of("inspect"), [bad, "-q", "--row", "0"]).exit_code != 0


def test_a_finding_as_json_has_its_columns_rows_and_option(tmp_path):
    path = write(tmp_path / "a.parquet", with_row(BASE, "response_mask", 4, at(3, 2)))
    shown = CliRunner().invoke(app_of("inspect"), [str(path), "--format", "json"]).stdout
    assert loads(shown)["findings"] == [
        {
            "check": "mask_values",
            "level": "error",
            "text": "`response_mask` has values other than 0 and 1, such as 2, in 1 of 192 "
            "responses (0.5 %). Correct the mask, or set another column with --map mask=COLUMN; "
            "cut prompts and padding.",
            "columns": ["response_mask"],
            "rows": [f"{path}:4"],
            "option": "--map mask=COLUMN",
        }
    ]
