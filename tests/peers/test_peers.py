"""The comparison with a framework: what it notices, and what `rlpost presets --verify` prints."""

import json
import sys
import types

import pytest
import torch
from runs import run

from rlpost.analysis import peers
from rlpost.analysis.peers.base import Outcome, Peer, PeerCase, compare, outcome
from rlpost.analysis.peers.rollouts import rollouts
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


def test_a_part_of_the_framework_that_needs_more_is_not_run(framework):
    framework(
        case(), PeerCase("b", case().ours, raising(ModuleNotFoundError("", name="queue_of_it")))
    )
    ran = run("presets", "--verify", "verl")
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "✓ agrees with a_framework 0.9.1 in 1 case"
    assert "! not run, 1 case: no module queue_of_it" in ran.out.splitlines()


FRAMEWORK = "a_framework"


@pytest.fixture
def framework(monkeypatch):
    """A framework that is installed as verl, with cases of the test's choice."""
    monkeypatch.setitem(sys.modules, FRAMEWORK, types.ModuleType(FRAMEWORK))
    monkeypatch.setattr("rlpost.analysis.peers.base.need", lambda *_: None)
    monkeypatch.setattr("rlpost.analysis.peers.base.version", lambda _: "0.9.1")

    def install(*cases, uncovered=()):
        peer = Peer("verl", FRAMEWORK, (FRAMEWORK,), lambda: cases, lambda: uncovered)
        monkeypatch.setattr(peers, "peer_of", lambda _: peer)

    return install


def test_agreement_is_one_line_and_exit_code_0(framework):
    framework(case(), case(2.0, fault="it divides twice"), uncovered=["estimator vapo"])
    ran = run("presets", "--verify", "verl")
    assert ran.code == 0
    assert ran.out.splitlines()[2:] == [
        "! not reproduced, 1 case: it divides twice",
        "! not covered by the preset: estimator vapo",
        "",
        "✓ agrees with a_framework 0.9.1 in 1 case",
    ]


def test_a_difference_is_printed_with_its_numbers_and_exit_code_1(framework):
    framework(
        case(), case(2.0, 2.5), PeerCase("b", case().ours, raising(TypeError("two arguments")))
    )
    ran = run("presets", "--verify", "verl")
    assert ran.code == 1
    assert "differs from a_framework 0.9.1 in 2 of 3 cases" in ran.out
    assert [
        word.strip()
        for word in next(x for x in ran.out.splitlines() if "gae" in x).split("  ")
        if word
    ][:4] == ["gae: text", "0.5", "2", "2.5"]
    assert "the framework raises TypeError: two arguments" in ran.out
    found = json.loads(run("presets", "--verify", "verl", "--format", "json").out)
    assert (found["agree"], found["cases"], len(found["different"])) == (False, 3, 2)
    assert found["different"][0] == {
        "case": "gae: text",
        "difference": "advantages: 1 of 1 numbers, most by 0.5 (framework 2, rlpost 2.5)",
    }
    markdown = run("presets", "--verify", "verl", "--format", "markdown")
    assert "| gae: text | 0.5 | 2 | 2.5 |" in markdown.out


def test_another_release_is_named(framework, monkeypatch):
    framework(case())
    monkeypatch.setattr("rlpost.analysis.peers.base.version", lambda _: "0.8.0")
    out = run("presets", "--verify", "verl").out
    assert out.splitlines()[1] == "made for 0.9.1"
    assert out.splitlines()[-1].startswith("✓ agrees with a_framework 0.8.0")


def test_a_framework_that_is_missing_or_broken_is_exit_code_5(framework, monkeypatch):
    framework(case())
    monkeypatch.delitem(sys.modules, FRAMEWORK)
    ran = run("presets", "--verify", "verl")
    assert (ran.code, ran.out) == (5, "")
    assert "the import of the installed a_framework fails" in ran.err
    assert "pip install 'rlpost[peers-verl]'" in ran.err
    monkeypatch.undo()
    monkeypatch.setattr("rlpost.optional.find_spec", lambda _: None)
    ran = run("presets", "--verify", "verl")
    assert ran.code == 5
    assert "--verify verl needs verl, which is not installed" in ran.err


def test_a_preset_without_a_comparison_is_exit_code_2():
    ran = run("presets", "--verify", "prime-rl")
    assert (ran.code, ran.out) == (2, "")
    assert "only trl and verl are compared with the installed package" in " ".join(ran.err.split())
    assert "did you mean verl" in run("presets", "--verify", "verll").err


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
