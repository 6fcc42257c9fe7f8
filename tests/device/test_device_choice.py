"""`--device auto`: decided once a run by its token columns, and used by what follows."""

from contextlib import contextmanager
from pathlib import Path

import pytest

import rlpost
from rlpost.pipeline import device_choice
from rlpost.render.summary import summary_page

SAMPLE = Path(__file__).parents[2] / "sample_data" / "arithmetic.parquet"
RECIPE = rlpost.Recipe(estimator="gae", kl_coef=0.05, whiten_advantages=True)


@pytest.fixture
def large(shadow, monkeypatch):  # noqa: ARG001 - its cards are plugged in
    """A context in which the sample is large enough for the machine's accelerator."""
    monkeypatch.setattr(device_choice, "has_accelerator", lambda: True)

    @contextmanager
    def context():
        with monkeypatch.context() as patch:
            patch.setattr(device_choice, "LEAST_BYTES", 1000)
            yield

    return context


def test_auto_goes_by_the_bytes_of_token_columns_and_the_summary_has_the_reason(large, tmp_path):
    small = rlpost.advantages(SAMPLE, tmp_path / "small.parquet", RECIPE)
    assert small["device"]["name"] == "cpu"
    assert small["device"]["accelerator_from_bytes"] == 1 << 30
    assert "1.07 GB" in small["device"]["reason"]
    with large():
        summary = rlpost.advantages(SAMPLE, tmp_path / "large.parquet", RECIPE)
        loss = rlpost.loss(SAMPLE, recipe=RECIPE)
    assert summary["device"]["name"] == loss["device"]["name"] == "shadow"
    assert summary["device"]["accelerator_from_bytes"] == 1000
    assert {*summary["devices"]} == {"shadow:0", "shadow:1"}
    assert f"computed on shadow: {summary['device']['reason']}" in summary_page(summary).lines
    assert not [line for line in summary_page(small).lines if "--device" in line]


def test_without_an_accelerator_a_large_run_is_on_the_cpu(large, monkeypatch, tmp_path):
    with large():
        monkeypatch.setattr(device_choice, "has_accelerator", lambda: False)
        summary = rlpost.advantages(SAMPLE, tmp_path / "out.parquet", RECIPE)
    assert (summary["device"]["name"], summary["devices"]) == ("cpu", ["cpu"])
    assert "no accelerator" in summary["device"]["reason"]
