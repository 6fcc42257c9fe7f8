"""The shadow counts what a GPU waits for, refuses what a GPU refuses, and hides when unplugged."""

import subprocess
import sys

import pytest
import torch

WAITS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 1).any()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "non-blocking copy to the host": lambda x: x.to("cpu", non_blocking=True),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 1),
    "boolean index": lambda x: x[x > 1],
    "boolean index, written": lambda x: x.index_put_((x > 1,), x[:1]),
    "masked_select": lambda x: x.masked_select(x > 1),
    "masked_fill with a number of the card": lambda x: x.masked_fill(x > 1, x[0]),
    "unique": lambda x: x.unique(),
    "equal": lambda x: x.equal(x),
    "allclose": lambda x: torch.allclose(x, x),
    "bincount": lambda x: x.long().bincount(),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "a size": lambda x: torch.zeros(int(x[0]), device=x.device),
    "a slice": lambda x: x[: x[1].long()],
    "checked segments": lambda x: torch.segment_reduce(x, "sum", lengths=torch.ones_like(x).long()),
    "tensor of a list": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "blocking transfer": lambda x: torch.ones(3).to(x.device),
    "index on the CPU": lambda x: x[torch.tensor([0, 1])],
    "synchronize": lambda x: torch.get_device_module(x.device).synchronize(),
}
FREE = {
    "arithmetic": lambda x: (x * 2 + 1).cumsum(0).exp(),
    "a number of the host": lambda x: x + torch.tensor(2.0),
    "masked_fill": lambda x: x.masked_fill(x > 1, 0.0),
    "where": lambda x: torch.where(x > 1, x, 0.0),
    "repeat_interleave with its size": lambda x: x.repeat_interleave(x.long(), output_size=6),
    "index": lambda x: x[x.long()],
    "sort": lambda x: x.sort(stable=True),
    "scatter": lambda x: x.scatter_add(0, x.long(), x),
    "view": lambda x: x[1:].view(torch.uint8),
    "new": lambda x: torch.arange(4, device=x.device) + x.new_zeros(4),
    "pinned": lambda x: torch.ones(3).pin_memory().to(x.device, non_blocking=True),
    "segments": lambda x: torch.segment_reduce(x, "sum", offsets=x.long()[:3], unsafe=True),
}


def card(shadow, index=0):
    return torch.tensor([0.0, 1.0, 3.0, 2.0]).to(shadow.cards[index])


@pytest.mark.parametrize("what", WAITS)
def test_it_counts_a_wait(shadow, what):
    x = card(shadow)
    with shadow.counted() as counts:
        WAITS[what](x)
    assert counts.waits == 1, counts


@pytest.mark.parametrize("what", FREE)
def test_it_counts_no_wait_for_what_stays_on_the_card(shadow, what):
    x = card(shadow)
    with shadow.counted() as counts:
        FREE[what](x)
    assert counts.waits == counts.to_host == 0, counts
    assert counts.ops > 0


def test_it_counts_sums_in_any_order(shadow):
    x = card(shadow)
    with shadow.counted() as counts:
        x.scatter_add(0, x.long() // 2, x)
        x.cumsum(0)
    assert [*counts.unordered] == ["scatter_add", "cumsum"]
    with shadow.counted() as counts:
        x.long().cumsum(0)
        x.scatter(0, x.long(), x)
        x.scatter_add(0, x.long(), x)
        x.index_put((x.long() // 2,), x, accumulate=True)
        x.long().index_add(0, x.long(), x.long())
        x.scatter_reduce(0, x.long(), x, "amax")
    assert not counts.unordered


def test_a_view_of_a_transfer_is_no_transfer(shadow):
    with shadow.counted() as counts:
        block = torch.zeros(24, dtype=torch.uint8).pin_memory()
        sent = block.to("shadow:0", non_blocking=True)
        numbers, flags = sent[:16].view(torch.float64), sent[16:]
        back = (numbers.sum() + flags.sum()).cpu()
    assert (counts.to_device, counts.to_device_bytes) == (1, 24)
    assert (counts.to_host, counts.to_host_bytes, counts.waits) == (1, 8, 1)
    assert back == 0


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x, _: x + torch.ones(4),
        lambda x, _: torch.where(torch.ones(4, dtype=torch.bool), x, 0.0),
        lambda x, _: torch.cat([x, torch.ones(1)]),
        lambda x, _: x.index_select(0, torch.tensor([0])),
        lambda x, _: torch.ones(4)[x.long()],
        lambda x, y: x + y,
        lambda x, y: x[y.long()],
    ],
)
def test_devices_do_not_mix(shadow, mixed):
    with pytest.raises((RuntimeError, IndexError), match=r"tensors on|device"):
        mixed(card(shadow), card(shadow, 1))


def test_a_pinned_buffer_must_not_change_before_its_copy_is_done(shadow):
    assert shadow.cards
    for late in (False, True):
        buffer = torch.ones(4, pin_memory=True)
        assert buffer.is_pinned()
        sent = buffer[1:].to("shadow:0", non_blocking=True)
        if late:
            assert sent.tolist() == [1.0, 1.0, 1.0]
            buffer.zero_()
        else:
            buffer.zero_()
            with pytest.raises(RuntimeError, match="a pinned buffer changed"):
                sent.sum().item()
    assert torch.ones(4).to("shadow:0").tolist() == [1.0] * 4


def test_torch_finds_the_cards_while_they_are_plugged_in(shadow):
    assert torch.accelerator.current_accelerator(check_available=True).type == "shadow"
    assert torch.accelerator.device_count() == len(shadow.cards) == 2
    module = torch.get_device_module("shadow:1")
    with module.device("shadow:1"):
        assert torch.zeros(1, device="shadow").device == torch.device("shadow:1")
    with torch.Stream(device="shadow:0"):
        assert torch.zeros(1, device="shadow").device == torch.device("shadow:0")


@pytest.mark.nightly
def test_without_the_cards_the_cpu_computes(shadow):
    assert shadow.cards
    program = """
import torch
from rlpost.pipeline.torch_device import accelerator, torch_device
from tests.device import shadow
assert accelerator() is None
with shadow.plugged_in():
    assert accelerator() == "shadow"
    assert torch_device("shadow:1") == torch.device("shadow:1")
assert accelerator() is None
"""
    subprocess.run([sys.executable, "-c", program], check=True)
