"""Inputs of `rlpost loss`, and a plain computation of their clipped tokens."""

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from runs import run, strict_json

FLOATS = pa.list_(pa.float32())
TOKENS = ("log_probs", "old_log_probs", "ref_log_probs", "infer_log_probs")


def dump(count=60, seed=0, *, with_advantages=True, longest=40, drift=0.3):
    """A table with masks, steps, domains, empty responses, and all log-probs."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest, count)
    lengths[::11] = 0
    lists = {name: [] for name in (*TOKENS, "response_mask", "advantages")}
    for n in lengths:
        old = -rng.exponential(0.7, n)
        scales = {"log_probs": drift, "old_log_probs": 0.0, "ref_log_probs": 0.2}
        for name, scale in (scales | {"infer_log_probs": 0.02}).items():
            lists[name].append((old + scale * rng.standard_normal(n)).astype(np.float32))
        lists["response_mask"].append((rng.random(n) < 0.8).astype(np.uint8))
        advantage = rng.choice([-1.5, -0.5, 0.0, 0.7, 2.0])
        lists["advantages"].append(np.full(n, advantage, np.float32))
    table = pa.table(
        {
            "prompt_id": [f"p{i // 4}" for i in range(count)],
            "reward": pa.array(rng.integers(0, 2, count), pa.float32()),
            "step": pa.array(rng.integers(0, 3, count)),
            "domain": [("math", "code")[i % 2] for i in range(count)],
            **{name: pa.array(lists[name], FLOATS) for name in TOKENS},
            "response_mask": pa.array(lists["response_mask"], pa.list_(pa.uint8())),
            "advantages": pa.array(lists["advantages"], FLOATS),
        }
    )
    return table if with_advantages else table.drop_columns(["advantages"])


def with_lists(table, name, change):
    """The table with a list column changed, token by token."""
    lists = [[change(x) for x in row] for row in table.column(name).to_pylist()]
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, pa.array(lists, FLOATS))


def tied(table):
    """The same with many log-probs of 0, as of tokens that a policy is sure of."""
    return with_lists(table, "log_probs", lambda x: 0.0 if x > -0.4 else x)


def with_nan(table):
    """A row whose first policy token has no finite log-prob, and the table with it."""
    lists, masks = (table.column(name).to_pylist() for name in ("log_probs", "response_mask"))
    row = next(i for i, mask in enumerate(masks) if 1 in mask)
    lists[row][masks[row].index(1)] = math.nan
    place = table.schema.get_field_index("log_probs")
    return row, table.set_column(place, "log_probs", pa.array(lists, FLOATS))


def save(table, path, rows=16):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows)
    return path


def summary_of(*words, **kept):
    """The JSON of `rlpost loss WORDS`, without what differs from run to run."""
    ran = run("loss", *words, "--format", "json")
    assert ran.code == 0, ran.err
    summary = strict_json(ran.out)
    left_out = {"bytes", "seconds", "inputs", "outputs"} - kept.keys()
    return {name: value for name, value in summary.items() if name not in left_out}


def of_all(summary, name, key="mean"):
    """A statistic of a measure of the whole input."""
    return summary["facts"][name]["all"][key]


def by(summary, name, key="step"):
    """The means of a measure by label."""
    part = summary["facts"][name][key]
    return dict(zip(part["label"], part["mean"], strict=True))


def of_measures(summary, start, key="all"):
    """The entries of the measures whose names begin so."""
    facts = summary["facts"]
    return {name: part[key] for name, part in facts.items() if name.startswith(start)}


def texts(summary):
    """The texts of the findings."""
    return [finding["text"] for finding in summary["findings"]]


def policy_tokens(path):
    """One row per policy token, with its position and response."""
    lists = [*TOKENS, "response_mask", "advantages"]
    rows = pl.read_parquet(path).with_row_index("row")
    rows = rows.with_columns(
        tokens=pl.col("response_mask").list.sum(),
        place=pl.int_ranges(0, pl.col("response_mask").list.len()),
    )
    flat = rows.filter(pl.col("response_mask").list.len() > 0).explode([*lists, "place"])
    return flat.filter(pl.col("response_mask") == 1).with_columns(
        pl.col(name).cast(pl.Float64) for name in (*TOKENS, "advantages")
    )


def ppo(tokens, low=0.2, high=0.2):
    """Columns of PPO's loss, its clipped tokens and those with zero gradient."""
    r = (tokens["log_probs"] - tokens["old_log_probs"]).exp().rename("r")
    a = tokens["advantages"]
    under = ((a < 0) & (r < 1 - low)).rename("low")
    over = ((a > 0) & (r > 1 + high)).rename("high")
    clipped = -a * r.clip(1 - low, 1 + high)
    loss = pl.select(pl.max_horizontal(-a * r, clipped)).to_series().rename("loss")
    return tokens.with_columns(r, under, over, loss).with_columns(
        flat=pl.col("low") | pl.col("high") | (pl.col("advantages") == 0)
    )


SWEEP = ("--sweep", "pg_clip=0.1,0.3", "--sweep", "loss=ppo,gspo,cispo,tis,sapo,geo_mean,dppo")
