"""The comparison with a framework: what it notices."""

import pytest
import torch
from peers.comparison import PeerCase, compare, outcome

from rlpost.errors import DataError


def numbers(*values):
    return {"advantages": torch.tensor(values, dtype=torch.float64)}


@pytest.mark.parametrize(
    ("theirs", "ours", "different", "largest"),
    [
        ((1.0, 2.0), (1.0, 2.1), 1, 0.1),
        ((1.0, 2.0), (1.0, 2.00002), 0, 0),  # 1e-5 of 2, and 1e-5
        ((1.0, 2.0), (1.0, 2.00005), 1, 5e-5),
        ((0.0, 0.0), (3.0, -4.0), 2, 4.0),
        ((torch.nan, 1.0), (torch.nan, 1.0), 0, 0),
        ((torch.nan, 1.0), (0.0, 1.5), 2, torch.inf),
        ((1.0, 2.0), (1.0, 2.0, 3.0), 1, torch.inf),
    ],
)
def test_the_largest_difference_is_found(theirs, ours, different, largest):
    found = compare(numbers(*theirs), numbers(*ours))
    if not different:
        assert found is None
        return
    assert (found.name, found.different) == ("advantages", different)
    assert found.largest == pytest.approx(largest)


def case(theirs=1.0, ours=1.0, **fields):
    return PeerCase("gae: text", lambda: numbers(ours), lambda: numbers(theirs), **fields)


def test_a_documented_fault_must_differ():
    assert outcome(case()).passed
    assert not outcome(case(2.0)).passed
    assert outcome(case(2.0, fault="it divides twice")).passed
    mended = outcome(case(fault="it divides twice"))
    assert not mended.passed
    assert str(mended) == "equal, although it is documented as a fault: it divides twice"


def test_what_a_function_raises_is_a_difference():
    def wrong():
        raise DataError("no\nresponse")

    ours = outcome(PeerCase("x", wrong, case().theirs))
    assert str(ours) == "rlpost raises DataError: no response"
    theirs = outcome(PeerCase("x", case().ours, wrong))
    assert str(theirs).startswith("the framework raises DataError")
    assert not theirs.passed
