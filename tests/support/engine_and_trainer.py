"""Rollouts of a softmax policy over a small vocabulary, seen by an engine and by a trainer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

VOCABULARY, FEATURES, LENGTH, STEPS = 128, 16, 48, 8


def log_softmax(logits):
    """Return log-probs of the last axis."""
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def kept_by_top_p(log_probs, top_p):
    """Return the tokens that top-p keeps: the likeliest whose mass reaches it, [t, v] bool."""
    order = np.argsort(-log_probs, 1)
    mass = np.cumsum(np.exp(np.take_along_axis(log_probs, order, 1)), 1)
    before = np.concatenate([np.zeros((len(mass), 1)), mass[:, :-1]], 1)
    kept = np.empty(log_probs.shape, np.bool_)
    np.put_along_axis(kept, order, before < top_p, 1)
    return kept


def rollouts(
    *, seed=0, responses=256, heat=1.0, heat_of="engine", top_p=1.0, drift=0.0, lagging=False,
    late_from=None, bad_host=None, noise=0.0, few=0.0, first=0.0, turn=0, shift=0, sure=1.0,
):  # fmt: skip
    """Return a table of responses, and the mean mass that the engine's sampling kept.

    Args:
        seed: of everything.
        responses: how many, of 48 tokens each.
        heat: the temperature of the engine; the trainer has 1.
        heat_of: `engine`: its log-probs have it; `trainer`: those of the trainer alone have it.
        top_p: of the engine.
        drift: change of the weights in each step.
        lagging: versions are 0 to 3 steps old.
        late_from: from this step on the engine keeps its weights.
        bad_host: this host has the first weights.
        noise: of the engine's logits.
        few: share of tokens whose trainer log-prob is off by some nats.
        first: change of the trainer's context at the first token of a turn.
        turn: tokens of a turn, 0 for one turn.
        shift: the engine's column is so many tokens ahead.
        sure: factor of all logits.
    """
    random = np.random.default_rng(seed)
    tokens = responses * LENGTH
    row, place = np.divmod(np.arange(tokens), LENGTH)
    hidden = random.normal(size=(tokens, FEATURES)) * np.exp(0.5 * random.normal(size=(tokens, 1)))
    hidden[::LENGTH] = np.repeat(hidden[:: 4 * LENGTH], 4, 0)[:responses]  # first: of one prompt
    weights = random.normal(size=(VOCABULARY, FEATURES)) * 0.7
    steps, host = np.sort(random.integers(0, STEPS, responses)), random.integers(0, 4, responses)
    lag = random.integers(0, 4, responses) if lagging else np.zeros(responses, np.int64)
    age = lag.copy()
    if late_from is not None:
        age = np.maximum(steps - late_from + 1, 0)
    if bad_host is not None:
        age = np.where(host == bad_host, steps + 3, 0)
    changes = random.normal(size=(STEPS + 4, *weights.shape)) * drift
    versions = weights + np.concatenate([np.zeros((1, *weights.shape)), changes.cumsum(0)])

    def logits(version, features):
        out = np.empty((tokens, VOCABULARY))
        for one in np.unique(version):
            own = version[row] == one
            out[own] = features[own] @ versions[one].T
        return sure * (out - 0.5 * np.log(np.arange(1, VOCABULARY + 1)))

    since = place % turn if turn else place
    begins = (since == 0) & (place > 0) if turn else since == 0
    other = hidden + random.normal(size=hidden.shape) * first * begins[:, None]
    engine = logits(steps + 3 - age, hidden) + noise * random.normal(size=(tokens, VOCABULARY))
    trainer = logits(steps + 3, other)
    sampled = log_softmax(engine / heat)
    kept = kept_by_top_p(sampled, top_p)
    sampled = log_softmax(np.where(kept, sampled, -np.inf))
    uniform = random.random((tokens, 1))
    token = np.minimum((np.cumsum(np.exp(sampled), 1) < uniform).sum(1), VOCABULARY - 1)
    chosen = np.arange(tokens), token
    infer = (sampled if heat_of == "engine" else log_softmax(engine))[chosen]
    full = log_softmax(trainer if heat_of == "engine" else trainer / heat)
    old = full[chosen] + 1e-6 * random.normal(size=tokens)
    old += np.where(random.random(tokens) < few, 3 * random.normal(size=tokens), 0)
    infer = np.roll(infer.reshape(responses, LENGTH), -shift, 1).reshape(-1)
    columns = {
        "infer_log_probs": np.minimum(infer, 0),
        "old_log_probs": np.minimum(old, 0),
        "entropy": -(np.exp(full) * full).sum(1),
        "response_mask": np.ones(tokens, np.int8),
    }
    table = {
        name: _lists(values.reshape(responses, LENGTH), turn) for name, values in columns.items()
    }
    table |= {"prompt_id": np.arange(responses) // 4, "reward": random.random(responses)}
    table |= {"step": steps, "policy_version": steps - lag, "host": [f"node{one}" for one in host]}
    return pa.table(table), float((np.exp(full) * kept).sum(1).mean())


def _lists(values, turn):
    """Return the lists of rows; after each turn come two observations, whose values are 0."""
    if turn:
        parts = values.reshape(len(values), -1, turn)
        values = np.pad(parts, ((0, 0), (0, 0), (0, 2))).reshape(len(values), -1)
    kind = pa.int8() if values.dtype == np.int8 else pa.float32()
    return pa.array([*values], pa.list_(kind))
