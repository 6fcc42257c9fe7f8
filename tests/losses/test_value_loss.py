"""The value loss against plain loops and autograd."""

from math import inf

import numpy as np
import pytest
import torch

from rlpost import functional
from rlpost.errors import UsageError


def loss_of(value, old, target, clip, delta):
    """Loss and gradient of one token, and whether the clipped value has the larger loss."""

    def huber(error):
        size = abs(error)
        return 0.5 * error**2 if size < delta else delta * (size - 0.5 * delta)

    near = min(max(value, old - clip), old + clip)
    plain, clipped = huber(value - target), huber(near - target)
    slope = min(max(value - target, -delta), delta)
    return max(plain, clipped), 0.0 if clipped > plain else slope, clipped > plain


@pytest.mark.parametrize(("clip", "delta"), [(inf, inf), (0.5, inf), (0.2, inf), (0.5, 10), (0, 1)])
def test_the_value_loss_equals_the_loop_and_its_gradient_that_of_autograd(clip, delta):
    rng = np.random.default_rng(7)
    old, values, returns = rng.normal(0, 8, 300), rng.normal(0, 8, 300), rng.normal(0, 8, 300)
    mask = rng.random(300) < 0.8
    found = functional.value_loss(values, old, returns, mask, clip=clip, delta=delta)
    loop = [loss_of(*one, clip, delta) for one in zip(values, old, returns, strict=True)]
    for ours, wanted in zip(found, np.array(loop).T, strict=True):
        np.testing.assert_allclose(ours, np.where(mask, wanted, 0), rtol=1e-13, atol=1e-15)
    assert found.clipped.any() == (clip < inf)
    tensors = [torch.tensor(one) for one in (values, old, returns, mask)]
    tensors[0].requires_grad_()
    again = functional.value_loss(*tensors, clip=clip, delta=delta)
    (gradient,) = torch.autograd.grad(again.loss.sum(), tensors[0])
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("option", [{"clip": -0.1}, {"delta": 0.0}])
def test_ranges_of_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        functional.value_loss(*(np.zeros(2),) * 3, **option)
