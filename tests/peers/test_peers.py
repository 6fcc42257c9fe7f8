"""The comparison with a framework: what it notices."""

import sys
import types

import pytest
import torch
from peers import comparison, drift
from peers.comparison import Peer, PeerCase, compare, outcome, verdict

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


def raising(error):
    def function():
        raise error

    return function


def test_a_verdict_names_what_differs(monkeypatch):
    monkeypatch.setitem(sys.modules, "a_framework", types.ModuleType("a_framework"))
    monkeypatch.setattr(comparison, "version", lambda _: "0.9.1")
    cases = [
        case(),
        case(2.0, 2.5),
        case(2.0, fault="it divides twice"),
        PeerCase("b", case().ours, raising(TypeError("two arguments"))),
        PeerCase("c", raising(DataError("no\nresponse")), case().theirs),
        PeerCase("d", case().ours, raising(ModuleNotFoundError("", name="queue_of_it"))),
    ]
    peer = Peer("verl", "a_framework", ("a_framework",), lambda: cases, lambda: ["estimator vapo"])
    result = verdict(peer)
    assert (result["cases"], result["uncovered"]) == (6, ["estimator vapo"])
    assert result["different"] == [
        {
            "case": "gae: text",
            "difference": "advantages: 1 of 1 numbers, most by 0.5 (framework 2, rlpost 2.5)",
        },
        {"case": "b", "difference": "the framework raises TypeError: two arguments"},
        {"case": "c", "difference": "rlpost raises DataError: no response"},
    ]
    drifted, lines = drift.lines("verl", {**result, "version": "2"})
    assert drifted
    assert [line.partition(":")[0].strip() for line in lines[1:]] == [
        *("gae", "b", "c", "not covered"),
    ]
    fine = {**result, "different": [], "uncovered": []}
    assert not drift.lines("verl", fine)[0]
