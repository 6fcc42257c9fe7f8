"""`rlpost doctor`: what it reports, and which faults of a machine it detects."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from runs import run

from rlpost.analysis import doctor
from rlpost.cli.render.doctor import page
from rlpost.display.page import show_page
from rlpost.pipeline.torch_device import torch_device


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    monkeypatch.setattr(doctor, "TOKENS", 40_000)
    monkeypatch.setattr(doctor, "accelerator", lambda: None)


@pytest.fixture
def card(monkeypatch):
    """A machine with a card, which computes what the function returns for a table of the CPU."""

    def plug_in(compute=lambda table: table):
        def enrich(table, recipe, options):
            made, summary = doctor_enrich(table, recipe, doctor.Options("cpu"))
            return (compute(made) if options.device == "cuda:0" else made), summary

        doctor_enrich = doctor.enrich
        monkeypatch.setattr(doctor, "accelerator", lambda: "cuda")
        monkeypatch.setattr(doctor, "torch_device", torch.device)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60 << 30, 80 << 30))
        monkeypatch.setattr(doctor, "enrich", enrich)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Fast Card")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))

    return plug_in


def moved(by: float):
    """Return a function that changes one advantage by a share of it."""

    def move(table):
        lists = table["advantages"].combine_chunks()
        values = lists.values.to_numpy().copy()
        values[np.flatnonzero(values)[7]] *= 1 + by
        made = pa.ListArray.from_arrays(lists.offsets, pa.array(values))
        return table.set_column(table.schema.get_field_index("advantages"), "advantages", made)

    return move


def report(*words: str) -> tuple[dict, int]:
    done = run("doctor", "--format", "json", *words)
    return json.loads(done.out), done.code


def test_a_machine_without_problems():
    found, code = report()
    assert (code, found["ok"], found["problems"]) == (0, True, [])
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["pyarrow"] == pa.__version__
    assert [one["device"] for one in found["devices"]] == ["cpu"]
    assert 1 <= found["cores"]["usable"] <= found["cores"]["all"]
    results = found["self_test"]["results"]
    assert [one["recipe"] for one in results] == [*doctor.RECIPES]
    assert {(one["device"], one["verdict"]) for one in results} == {("cpu", "identical")}


def test_a_card_is_compared_with_the_cpu(card):
    card(moved(3e-7))
    found, code = report()
    assert found["devices"][1] == {
        "device": "cuda:0",
        "name": "Fast Card",
        "memory": 80 << 30,
        "capability": "9.0",
    }
    results = {(one["device"], one["recipe"]): one for one in found["self_test"]["results"]}
    scan = results["cuda:0", "gae, KL, whitening"]
    assert scan["verdict"] == "equal to rounding"
    assert 0 < scan["largest_difference"] < 1e-5
    assert scan["problem"] is None
    assert results["cuda:0", "grpo"]["problem"].startswith("differs from the CPU's results by")
    assert (found["ok"], code) == (False, 5)  # the same bits are needed of grpo


def failing(*_, **__):
    raise RuntimeError("CUDA error: no kernel image\nmore lines")


@pytest.mark.parametrize(
    ("compute", "problem"),
    [
        (moved(1e-3), "cuda:0, gae, KL, whitening: differs from the CPU's results by up to"),
        (failing, "cuda:0, grpo: RuntimeError: CUDA error: no kernel image"),
    ],
)
def test_a_card_that_computes_something_else_is_a_problem(card, compute, problem):
    card(compute)
    found, code = report()
    assert code == 5
    assert len(found["problems"]) == 2
    assert any(text.startswith(problem) for text in found["problems"])


def test_a_card_that_cannot_be_used_is_a_problem(card, monkeypatch):
    card()
    monkeypatch.setattr(doctor, "torch_device", torch_device)
    monkeypatch.setattr(torch, "ones", failing)
    found, code = report()
    assert code == 5
    assert [text.partition("; ")[0] for text in found["problems"]] == [
        f"--device cuda:0: torch {torch.__version__}: CUDA error: no kernel image"
    ]
    assert {one["device"] for one in found["self_test"]["results"]} == {"cpu"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_device_is_a_problem_and_a_wrong_name_an_error():
    found, code = report("--device", "cuda:1")
    assert code == 5
    assert found["problems"][0].startswith(f"--device cuda:1: torch {torch.__version__}")
    wrong = run("doctor", "--device", "tpu")
    assert (wrong.code, wrong.out) == (2, "")


def test_the_report_is_a_page_and_markdown_for_issues(card, capsys):
    assert "finds no GPU: rlpost help gpu" in run("doctor").out
    card(moved(3e-7))
    found, _ = report()
    show_page(page(found), "table")
    text = capsys.readouterr().out
    for part in ("Fast Card", "85.9 GB", "equal bit for bit", "equal to within", "DIFFERS by"):
        assert part in text
    show_page(page(found), "markdown")
    text = capsys.readouterr().out
    assert text.startswith("# rlpost doctor · rlpost ")
    assert "finds no GPU" not in text
    assert "| cuda:0 | Fast Card | 85.9 GB | 9.0 |" in text
    assert "- ✗ cuda:0, grpo: differs" in text
