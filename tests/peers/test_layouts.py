"""The weights of tokens under micro-batches against the gradients that frameworks accumulate."""

from importlib.util import find_spec
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import rlpost

pytestmark = pytest.mark.filterwarnings("ignore")
LENGTHS = (2, 9, 4, 6, 1, 3, 8, 2)
MICRO = 2
WIDE = max(LENGTHS)


def padded():
    """Mask, advantages and log-probs of 4 micro-batches of unequal length, [N, T]; no clip."""
    rng = torch.Generator().manual_seed(3)
    mask = torch.arange(WIDE) < torch.tensor(LENGTHS)[:, None]
    mask &= (torch.rand(mask.shape, generator=rng) < 0.8) | (torch.arange(WIDE) == 0)
    advantages = torch.randn(len(LENGTHS), generator=rng)
    return mask, advantages, -torch.rand(mask.shape, generator=rng) - 0.1


def ours(tmp_path, aggregation, level, **options):
    """The gradient of rlpost, [N, T], and the factor that the layout costs."""
    mask, advantages, log_probs = padded()
    columns = {"response_mask": mask.int(), "log_probs": log_probs, "old_log_probs": log_probs}
    columns["advantages"] = advantages[:, None].expand(mask.shape)
    table = {
        name: [row[:size].tolist() for row, size in zip(values, LENGTHS, strict=True)]
        for name, values in columns.items()
    }
    path, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table(table), path)
    summary = rlpost.loss(
        path,
        out,
        loss=rlpost.LossOptions(aggregation=aggregation, **options),
        emit=["loss_weight", "loss_gradient"],
        micro_batch=MICRO,
        agg_level=level,
    )
    gradient = np.zeros(mask.shape)
    for row, own in enumerate(pq.read_table(out)["loss_gradient"].to_pylist()):
        gradient[row, : len(own)] = own
    return gradient, summary["settings"][0]["layout"]["factor"]


def accumulated(loss):
    """The gradient that the backward passes of the micro-batches add up to, [N, T].

    Args:
        loss: of the rows of a micro-batch, their log-probs, and all that `padded` returns.
    """
    mask, advantages, log_probs = padded()
    new = log_probs.clone().requires_grad_()
    for rows in torch.arange(len(LENGTHS)).split(MICRO):
        loss(rows, new[rows], mask, advantages, log_probs).backward()
    return new.grad.numpy()


VERL = (
    ("token-mean", "update", True, {}),
    ("token-mean", "micro", False, {}),
    ("seq-mean-token-mean", "update", True, {}),
    ("seq-mean-token-sum", "micro", False, {}),
    ("token-sum", "update", True, {}),
    ("seq-mean-token-sum-norm", "micro", False, {"agg_norm": "rows", "agg_length": WIDE}),
)


@pytest.mark.parametrize(
    ("mode", "level", "counts", "options"),
    [pytest.param(*one, id=f"verl-{one[0]}-{one[1]}") for one in VERL],
)
@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
def test_agg_loss_of_verl_gives_the_same_gradient(tmp_path, mode, level, counts, options):
    """With the counts of the mini-batch as its engines pass them, or averaged without them."""
    from verl.trainer.ppo.core_algos import agg_loss  # noqa: PLC0415

    def loss(rows, new, mask, advantages, old):
        values = -(new - old[rows]).exp() * advantages[rows, None]
        whole = {"batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask)}
        found = agg_loss(values, mask[rows], mode, **(whole if counts else {}))
        return found if counts else found * MICRO / len(mask)

    gradient, factor = ours(tmp_path, mode, level, **options)
    np.testing.assert_allclose(gradient, accumulated(loss), rtol=1e-5, atol=1e-8)
    print(f"verl {mode}, {'mini-batch' if counts else 'micro-batch'}: factor {factor:.4g}")
    assert factor == pytest.approx(1) if level == "update" else factor >= 1


TRL = (
    ("grpo", "seq-mean-token-mean", "micro"),
    ("bnpo", "token-mean", "micro"),
    ("dapo", "token-mean", "step"),
    ("luspo", "seq-mean-token-sum", "micro"),
)


@pytest.mark.parametrize(
    ("loss_type", "aggregation", "level"), [pytest.param(*one, id=f"trl-{one[0]}") for one in TRL]
)
@pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
def test_micro_batches_of_trl_give_the_same_gradient(tmp_path, loss_type, aggregation, level):
    from rlpost.analysis.peers import trl  # noqa: PLC0415

    own = {"loss_type": loss_type}
    if loss_type == "luspo":
        own["importance_sampling_level"] = "sequence"
    trainer = trl._step(options=tuple(own.items())).trainer
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = (
        len(LENGTHS) // MICRO
    )
    trainer.model.train()

    def loss(rows, new, mask, advantages, old):
        real = (torch.arange(WIDE) < torch.tensor(LENGTHS)[:, None]).long()
        inputs = {
            "prompt_ids": torch.full((len(rows), 1), 2),
            "prompt_mask": torch.ones(len(rows), 1, dtype=torch.long),
            "completion_ids": torch.full((len(rows), WIDE), 3),
            "completion_mask": real[rows],
            "tool_mask": mask[rows].long(),
            "old_per_token_logps": old[rows],
            "ref_per_token_logps": old[rows],
            "advantages": advantages[rows],
            "num_items_in_batch": mask.sum(),
        }
        name, found = "_get_per_token_logps_and_entropies", (new, -new.detach(), None)
        with mock.patch.object(type(trainer).__mro__[1], name, return_value=found):
            return trainer.compute_loss(trainer.model, inputs)

    trainer.log_probs = []
    gradient, factor = ours(tmp_path, aggregation, level)
    theirs = accumulated(loss)
    if loss_type == "luspo":  # its ratio is that of the response: compare the sums of responses
        gradient, theirs = gradient.sum(1), theirs.sum(1)
    np.testing.assert_allclose(gradient, theirs, rtol=1e-5, atol=1e-8)
    print(f"TRL {loss_type}: factor {factor:.4g}")
    assert factor == pytest.approx(1) if level == "step" else factor >= 1
