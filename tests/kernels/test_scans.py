"""Scans against loops; and by hand: a decay per element, gradients."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_values import DOUBLE, NONE, double, unchanged

from rlpost.kernels import scans, segments

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


def loop(values, lengths, decay):
    out, start = [], 0
    for n in lengths:
        row, running = [0.0] * n, 0.0
        for t in reversed(range(n)):
            running = float(values[start + t]) + decay * running
            row[t] = running
        out += row
        start += n
    return out


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 700) | st.sampled_from([0, 1, 15, 16, 17, 33, 256, 257]), max_size=5),
    st.sampled_from([0.0, 1.0, 0.5, 0.95, 0.999]) | st.floats(0, 1),
    st.sampled_from([np.float32, DOUBLE]),
    st.integers(0, 2**32),
)
def test_the_blocked_scan_is_the_naive_loop(lengths, decay, dtype, seed):
    values = np.random.default_rng(seed).standard_normal(sum(lengths)).astype(dtype)
    offsets = segments.offsets_of(np.array(lengths, dtype=np.int64))
    got = unchanged(scans.reverse_scan, values, offsets, decay=decay)
    assert got.dtype == dtype
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(got, loop(values, lengths, decay), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, DOUBLE])
def test_a_scan_depends_on_what_follows_in_the_segment_and_on_nothing_else(dtype):
    values = np.sin(np.linspace(-1, 1, 5000)).astype(dtype)
    offsets = np.array([0, 7, 7, 2031, 2047, 5000])
    got = scans.reverse_scan(values, offsets, 0.95)
    for first, last in ((0, 7), (3, 7), (7, 2031), (1000, 2031), (2031, 2047), (2048, 5000)):
        alone = scans.reverse_scan(values[first:last], np.array([0, last - first]), 0.95)
        assert np.array_equal(alone, got[first:last])


def test_a_scan_with_a_decay_per_element_is_the_loop():
    rng, offsets = np.random.default_rng(3), np.array([0, 3, 3, 4, 45, 62])
    values, decays = rng.normal(size=62), rng.uniform(0, 1.2, 62)
    want = values.copy()
    for first, last in pairwise(offsets):
        for t in reversed(range(first, last - 1)):
            want[t] += decays[t] * want[t + 1]
    np.testing.assert_allclose(scans.reverse_scan_each(values, offsets, decays), want, rtol=1e-12)


def test_a_scan_with_gradients_has_the_same_values():
    values = np.linspace(-1, 1, 16 * 1024 * 2 + 21)
    offsets = np.array([0, 3, 40, 40, 16 * 1024 + 5, len(values)])
    traced = torch.tensor(values, requires_grad=True)
    out = scans.reverse_scan(traced, torch.from_numpy(offsets), 0.5)
    assert np.array_equal(out.detach().numpy(), scans.reverse_scan(values, offsets, 0.5))
    out[[0, 3, 40]].sum().backward()
    want = np.zeros_like(values)
    for first, last in ((0, 3), (3, 40), (40, 16 * 1024 + 5)):  # dyₛ/dxₜ = decay^(t-s)
        want[first:last] = 0.5 ** np.arange(last - first, dtype=DOUBLE)
    np.testing.assert_allclose(traced.grad.numpy(), want, rtol=1e-14, atol=1e-300)


def test_spread_or_scalar_does_not_repeat_equal_values():
    offsets = np.array([0, 2, 2, 5])
    assert segments.spread_or_scalar(double([3, 3, 3]), offsets).tolist() == [3]
    assert segments.spread_or_scalar(double([3, 3, 4]), offsets).tolist() == [3, 3, 4, 4, 4]
    assert segments.spread_or_scalar(double([3, 4, 3]), offsets).tolist() == [3, 3, 3, 3, 3]
    assert segments.spread_or_scalar(double([1, 2, 3]), offsets).tolist() == [1, 1, 3, 3, 3]
    assert segments.spread_or_scalar(double([]), NONE).tolist() == []
