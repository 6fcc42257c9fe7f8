"""The functions on arrays of numpy: the numbers of tensors, and arrays of numpy back."""

import numpy as np
import pytest
import torch
from array_kinds import array_of, kind_of, numbers_of

from rlpost import functional as F  # noqa: N812
from rlpost.errors import UsageError

OFFSETS, MASK = [0, 0, 5, 6, 11], [1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0]
RANDOM = np.random.default_rng(0)
TOKENS = [-RANDOM.random(11) for _ in range(3)]
TURNS, ROLLOUTS = [1, 0, 0, 0], [3, 3, 4, 5]
REWARDS, GROUPS = RANDOM.standard_normal(4), [7, 7, 8, 8]
CALLS = {
    "grpo": ([REWARDS, GROUPS], {}),
    "dr_grpo": ([REWARDS, GROUPS], {}),
    "rloo": ([REWARDS, GROUPS], {}),
    "opo": ([REWARDS, [0, 4, 1, 4], GROUPS], {}),
    "gpg": ([REWARDS, GROUPS], {}),
    "grpo_passk": ([REWARDS, GROUPS], {}),
    "max_rl": ([REWARDS, GROUPS], {}),
    "gdpo": ([RANDOM.random((4, 2)), GROUPS], {}),
    "gae": ([*TOKENS[:2], OFFSETS, MASK], {"gamma": 0.9}),
    "turn_gae": ([*TOKENS[:2], OFFSETS, MASK], {"gamma": 0.9}),
    "agentic_reinforce": ([TOKENS[0], OFFSETS, MASK], {"gamma": 0.9}),
    "vtrace": ([TOKENS[0], *TOKENS, OFFSETS, MASK], {"gamma": 0.9}),
    "mt_grpo": ([REWARDS, REWARDS, TURNS, ROLLOUTS, GROUPS], {"norm_std": "none"}),
    "turn_credit": ([REWARDS, REWARDS, TURNS, ROLLOUTS, GROUPS, [0, 4, 1, 4]], {}),
    "turn_returns": ([REWARDS, TURNS, ROLLOUTS], {"step_gamma": 0.5}),
    "gar": ([REWARDS, RANDOM.random(4), GROUPS], {}),
    "discounted_returns": ([TOKENS[0], OFFSETS, MASK], {"gamma": 0.9}),
    "response_rewards": ([REWARDS, TOKENS[0], OFFSETS], {}),
    "place_rewards": ([REWARDS, OFFSETS, MASK], {}),
    "to_tokens": ([REWARDS, OFFSETS, MASK], {}),
    "whiten": ([TOKENS[0], MASK], {}),
    "value_loss": ([*TOKENS, MASK], {"clip": 0.2, "delta": 0.3}),
    "kl": ([*TOKENS[:2], MASK], {"kl_estimator": "k3"}),
    "accepted_tokens": ([*TOKENS[:2], OFFSETS, MASK], {"filters": ["batch:k2::0.1"]}),
    "top_entropy": ([-TOKENS[0], MASK], {"quantile": 0.4}),
    "proximal_log_probs": ([*TOKENS[:2], -4 * TOKENS[2], MASK], {"how": "linear"}),
    "layout_weights": ([TOKENS[0], OFFSETS, MASK], {"micro_batch": 2}),
    "importance_weights": ([*TOKENS[:2], OFFSETS, MASK], {"level": "segment"}),
    "policy_loss": ([*TOKENS, OFFSETS, MASK], {"loss": "clip_cov"}),
    "aggregate": ([TOKENS[0], OFFSETS, MASK], {"how": "seq-mean-token-mean"}),
}


def called(kind, name, dtype):
    """The results of a function, as arrays of numpy."""
    arguments, options = CALLS[name]
    floats = [array_of(kind, x, dtype if isinstance(x, np.ndarray) else None) for x in arguments]
    found = getattr(F, name)(*floats, **options)
    parts = found if isinstance(found, tuple) else (found,)
    assert all(kind_of(x) == kind or not getattr(x, "shape", ()) for x in parts)
    return [np.asarray(numbers_of(x)) if kind == "torch" else np.asarray(x) for x in parts]


def test_every_function_has_a_call():
    functions = {name for name in F.__all__ if name[0].islower() and name != "padded"}
    of_functions = {"per_rollout", "over_rollouts"}  # test_functional_rollouts.py has them
    assert functions == {*CALLS} | of_functions


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_arrays_of_numpy_give_the_numbers_of_tensors(name, dtype):
    rounding = 1e-5 if dtype == "float32" else 1e-12
    for ours, theirs in zip(
        called("numpy", name, dtype), called("torch", name, dtype), strict=True
    ):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("library", ["array_api_strict", "jax.numpy"])
@pytest.mark.parametrize("name", CALLS)
def test_arrays_of_another_library_give_the_numbers_of_numpy(name, library):
    xp = pytest.importorskip(library)
    arguments, options = CALLS[name]
    plain = [np.asarray(x, "float32" if isinstance(x, np.ndarray) else "int32") for x in arguments]
    results = getattr(F, name)(*plain, **options)
    others = getattr(F, name)(*map(xp.asarray, plain), **options)
    assert isinstance(others, type(results)) or not isinstance(results, tuple)
    pairs = zip(others, results, strict=True) if isinstance(results, tuple) else [(others, results)]
    for ours, theirs in pairs:
        assert isinstance(ours, type(xp.asarray(plain[0])))
        np.testing.assert_array_equal(np.from_dlpack(ours), theirs)


def test_an_array_that_numpy_cannot_read_is_an_error():
    jax = pytest.importorskip("jax")
    ones = jax.numpy.ones(11)

    def total(values):
        return F.discounted_returns(values, OFFSETS).sum()

    with pytest.raises(UsageError, match="on the CPU is needed"):
        jax.grad(total)(ones)


def test_arguments_of_two_libraries_are_an_error():
    with pytest.raises(UsageError, match="one library is needed"):
        F.gae(torch.zeros(11), np.zeros(11), torch.tensor(OFFSETS))
