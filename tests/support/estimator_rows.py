"""Responses with all columns that estimators read, and what an estimator writes for them."""

import numpy as np
from reference import Response
from strategies import ESSENTIALS, to_table

import rlpost

WRITTEN = ("advantages", "returns")


def responses(rewards, *, masks=None, group="p", **fields):
    """A group of responses, of three policy tokens unless masks say otherwise."""
    masks = masks or [[1, 1, 1]] * len(rewards)
    tokens = {"values": 0.5, "old": -0.5, "ref": -0.75, "infer": -0.625, "sum_pi_squared": 0.5}
    return [
        Response(
            group=group,
            reward=x,
            mask=m,
            reward_baseline=0.25,
            components={"correctness": x, "format": 0.5},
            traj_id=f"t{place}",
            step_score=x,
            episode_score=x,
            **{name: [value] * len(m) for name, value in tokens.items()},
            **fields,
        )
        for place, (x, m) in enumerate(zip(rewards, masks, strict=True))
    ]


def written(rows, name, **options):
    """Advantages and returns of all tokens, [T] each."""
    recipe = rlpost.Recipe(**{**ESSENTIALS.get(name, {}), "estimator": name, **options})
    table, _ = rlpost.enrich(to_table(rows), recipe)
    return [table.column(column).combine_chunks().flatten().to_numpy() for column in WRITTEN]


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
