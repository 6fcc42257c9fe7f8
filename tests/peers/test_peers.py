"""The comparison with a framework: what it notices."""

import sys
import types

import pytest
import torch
from peers import comparison
from peers.comparison import Outcome, Peer, PeerCase, compare, outcome, verdict
from peers.peer_rollouts import rollouts

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


def test_a_column_that_only_the_framework_has_is_an_error():
    with pytest.raises(KeyError):
        compare(numbers(1.0), {})


def case(theirs=1.0, ours=1.0, **fields):
    return PeerCase("gae: text", lambda: numbers(ours), lambda: numbers(theirs), **fields)


def raising(error):
    def function():
        raise error

    return function


def test_a_documented_fault_must_differ():
    assert outcome(case()).passed
    assert not outcome(case(2.0)).passed
    assert outcome(case(2.0, fault="it divides twice")).passed
    mended = outcome(case(fault="it divides twice"))
    assert not mended.passed
    assert str(mended) == "equal, although it is documented as a fault: it divides twice"


def test_what_a_function_raises_is_a_difference():
    theirs = outcome(PeerCase("x", case().ours, raising(AttributeError("no compute_gae"))))
    assert str(theirs) == "the framework raises AttributeError: no compute_gae"
    ours = outcome(PeerCase("x", raising(DataError("no\nresponse")), case().theirs))
    assert str(ours) == "rlpost raises DataError: no response"
    assert not theirs.passed
    assert not ours.passed


def test_a_verdict_names_what_differs(monkeypatch):
    monkeypatch.setitem(sys.modules, "a_framework", types.ModuleType("a_framework"))
    monkeypatch.setattr(comparison, "version", lambda _: "0.9.1")
    cases = [
        case(),
        case(2.0, 2.5),
        case(2.0, fault="it divides twice"),
        PeerCase("b", case().ours, raising(TypeError("two arguments"))),
        PeerCase("c", case().ours, raising(ModuleNotFoundError("", name="queue_of_it"))),
    ]
    peer = Peer("verl", "a_framework", ("a_framework",), lambda: cases, lambda: ["estimator vapo"])
    result = verdict(peer)
    assert (result["cases"], result["uncovered"]) == (5, ["estimator vapo"])
    assert result["different"] == [
        {
            "case": "gae: text",
            "difference": "advantages: 1 of 1 numbers, most by 0.5 (framework 2, rlpost 2.5)",
        },
        {"case": "b", "difference": "the framework raises TypeError: two arguments"},
    ]


def test_rollouts_are_the_same_in_a_table_and_padded():
    data = rollouts(3, turns=True, empty=True)
    table = data.table()
    for row, (length, mask) in enumerate(
        zip(data.lengths, table["response_mask"].to_pylist(), strict=True)
    ):
        assert data.mask[row, :length].tolist() == mask
        assert not data.mask[row, length:].any()
    assert data.ragged(table["values"]).equal(data.padded("values"))
    masks = table["response_mask"].to_pylist()
    assert sum(not any(mask) for mask in masks) >= 2
    assert any(not mask[-1] and any(mask) for mask in masks)  # an observation at the end
    assert any("101" in "".join(map(str, mask)) for mask in masks)  # and inside
    assert rollouts(3, turns=True, empty=True) is data


def test_an_outcome_without_a_difference_is_equal():
    assert Outcome("x").equal
    assert str(Outcome("x")) == "equal"


@pytest.mark.parametrize("uncovered", [[], ["policy loss new"]])
def test_what_a_preset_does_not_cover_is_drift(uncovered):
    from peers.drift import lines  # noqa: PLC0415

    found = {"version": "2", "release": "1", "cases": 3, "different": [], "uncovered": uncovered}
    this, texts = lines("trl", found)
    assert this == bool(uncovered)
    assert len(texts) == 1 + len(uncovered)
    one = {"case": "gae", "difference": "advantages"}
    assert lines("trl", {**found, "different": [one]})[1][1] == "  gae: advantages"
