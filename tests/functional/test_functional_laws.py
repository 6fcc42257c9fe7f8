"""What all functions promise of arrays: values, dtypes, libraries, padding, gradients."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from array_kinds import numbers_of
from functional_calls import CALLS, MASK, OFFSETS, called, columns_of
from functional_rows import CLOSE, F, P

from rlpost.errors import UsageError


def calls(chosen=CALLS):
    return pytest.mark.parametrize(("name", "columns", "knobs"), chosen)


def is_float(array):
    return array.is_floating_point() if torch.is_tensor(array) else array.dtype.kind == "f"


def test_the_calls_cover_every_public_function():
    functions = {name for name in F.__all__ if callable(getattr(F, name)) and name.islower()}
    assert functions == {name for name, _, _ in CALLS}
    assert {*P.__all__} <= functions


def keeps_inputs_and_gives_their_type(name, columns, knobs, dtype, kind):
    arrays = columns_of(kind, dtype)
    found = called(name, columns, knobs, arrays)
    for key, before in columns_of(kind, dtype).items():
        assert np.array_equal(numbers_of(arrays[key]), numbers_of(before)), key
    expected = called(name, columns, knobs, columns_of())
    for one, wanted in zip(found, expected, strict=True):
        assert isinstance(one, np.ndarray | np.generic if kind == "numpy" else torch.Tensor)
        numbers = np.asarray(numbers_of(one) if kind != "numpy" else one)
        assert numbers.dtype == (dtype if np.asarray(wanted).dtype == float else wanted.dtype)
        rounding = 1e-4 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(numbers, wanted, rtol=rounding, atol=rounding)
        if kind == "torch":
            assert all(one.data_ptr() != x.data_ptr() for x in arrays.values())


@calls()
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_inputs_are_kept_and_results_have_their_library_and_type(name, columns, knobs, kind):
    for dtype in ("float32", "float64"):
        keeps_inputs_and_gives_their_type(name, columns, knobs, dtype, kind)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_results_stay_on_the_gpu():
    for call in CALLS:
        for dtype in ("float32", "float64"):
            keeps_inputs_and_gives_their_type(*call, dtype, "cuda")


@pytest.mark.parametrize("library", ["array_api_strict", "jax.numpy"])
@calls([call for call in CALLS if call[2].get("loss", "clip_cov") == "clip_cov"])
def test_arrays_of_another_library_give_the_numbers_of_numpy(name, columns, knobs, library):
    xp = pytest.importorskip(library)
    plain = {key: x.astype("f4" if is_float(x) else "i4") for key, x in columns_of().items()}
    others = called(name, columns, knobs, {key: xp.asarray(x) for key, x in plain.items()})
    for ours, theirs in zip(others, called(name, columns, knobs, plain), strict=True):
        assert isinstance(ours, type(xp.asarray(MASK)))
        np.testing.assert_array_equal(np.from_dlpack(ours), theirs)


def widened(array, fill):
    """[3, 6] of ragged tokens, on the right with something that is not read."""
    wide = torch.full((3, 6), fill, dtype=array.dtype)
    for row, (start, stop) in enumerate(itertools.pairwise(OFFSETS)):
        wide[row, : stop - start] = array[start:stop]
    return wide


@calls([call for call in CALLS if call[0] in P.__all__])
def test_padded_arrays_give_the_numbers_of_ragged_ones(name, columns, knobs):
    arrays = columns_of("torch")
    ragged = called(name, columns, knobs, arrays)
    unread = math.nan if "mask" in columns else 0.0
    wide = {
        key: widened(x, 0 if key == "mask" else unread) if len(x) == len(MASK) else x
        for key, x in arrays.items()
    }
    places = [column for column in columns if column != "offsets"]
    for ours, theirs in zip(called(name, places, knobs, wide, P), ragged, strict=True):
        per_token = theirs.ndim and len(theirs) == len(MASK)
        torch.testing.assert_close(ours, widened(theirs, 0) if per_token else theirs, **CLOSE)


@calls([call for call in CALLS if "mask" in call[1]])
def test_values_on_observation_tokens_are_not_used(name, columns, knobs):
    arrays = columns_of()
    spoilt = {
        key: np.where(MASK != 0, x, math.nan) if is_float(x) and x.shape == MASK.shape else x
        for key, x in arrays.items()
    }
    for one, wanted in zip(
        called(name, columns, knobs, spoilt), called(name, columns, knobs, arrays), strict=True
    ):
        np.testing.assert_array_equal(one, wanted)


def test_an_array_that_numpy_cannot_read_is_an_error():
    jax = pytest.importorskip("jax")

    def total(values):
        return F.reinforce(values, OFFSETS).sum()

    with pytest.raises(UsageError, match="on the CPU is needed"):
        jax.grad(total)(jax.numpy.ones(9))


# Gradients

DIFFERENTIABLE = {
    "gae": ("rewards", "values"),
    "reinforce": ("rewards",),
    "reinforce_pp": ("rewards",),
    "remax": ("rewards", "scores"),
    "opd": ("values",),
    "turn_gae": ("rewards", "values"),
    "agentic_reinforce": ("rewards",),
    "vtrace": ("rewards", "values"),
    "place_rewards": ("scores",),
    "response_rewards": ("scores", "rewards"),
    "to_tokens": ("scores",),
    "whiten": ("values",),
    "value_loss": ("values",),
    "kl": ("log_probs", "ref"),
    "aggregate": ("values",),
}


# Advantages of groups and weights are constants; test_losses.py has the losses' gradients.
@calls([call for call in CALLS if call[0] in DIFFERENTIABLE])
def test_gradients_equal_difference_quotients(name, columns, knobs):
    tensors = columns_of("torch")
    chosen = DIFFERENTIABLE[name]

    def function(*inputs):
        found = called(name, columns, knobs, tensors | dict(zip(chosen, inputs, strict=True)))
        return tuple(one for one in found if one.is_floating_point())

    inputs = tuple(tensors[column].clone().requires_grad_() for column in chosen)
    assert torch.autograd.gradcheck(function, inputs)


@calls()
def test_constants_have_no_gradient(name, columns, knobs):
    tensors = {
        key: x.requires_grad_() if x.is_floating_point() else x
        for key, x in columns_of("torch").items()
    }
    found = called(name, columns, knobs, tensors)
    differentiable = name in DIFFERENTIABLE or name == "policy_loss"
    assert found[0].requires_grad == differentiable
    if name == "policy_loss":
        found[0].backward()
        assert tensors["log_probs"].grad is not None
        assert tensors["old"].grad is None
        assert tensors["values"].grad is None
        assert bool(tensors["log_probs"].grad[MASK == 0].eq(0).all())
