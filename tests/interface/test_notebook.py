"""Notebooks: views of results, and help."""

import pydoc
import re
import sys
from html import unescape

import polars as pl
import pytest

import rlpost
from rlpost.errors import UsageError

SAMPLE = "sample_data/arithmetic.parquet"
FRAME = pl.read_parquet(SAMPLE)


RESULTS = {
    "advantages": lambda path: rlpost.advantages(SAMPLE, path.with_name("a.parquet")),
    "inspect": rlpost.inspect,
    "verify": rlpost.verify,
    "loss": rlpost.loss,
    "sweep": lambda path: rlpost.loss(path, sweep={"pg_clip": [0.1, 0.2]}),
    "compare": lambda path: rlpost.compare([path, path]),
    "replay": lambda path: rlpost.replay(path, rlpost.Recipe()),
}
TITLES = {"advantages": "a.parquet · grpo", "sweep": "rlpost loss · "}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_shows_what_its_command_prints(name, enriched, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    result = RESULTS[name](enriched[0])
    text = repr(result)
    assert text.startswith(TITLES.get(name, f"rlpost {name} · "))
    assert max(map(len, text.splitlines())) <= 90
    assert "\x1b" not in text
    html = result._repr_html_()
    assert html.startswith("<style>")
    assert html.count('<section class="rlpost-page">') == 1
    assert html.count("<pre") == html.count('<pre class="rlpost-picture">')


@pytest.mark.nightly
def test_a_report_is_shown_and_saved(tmp_path):
    report = rlpost.report(FRAME)
    assert report.inputs == ["DataFrame"]
    assert "/DataFrame" not in report.html  # of the temporary folder
    assert "DataFrame</" in report.html
    assert "written by" not in report.html
    frame = re.fullmatch(
        '<iframe .*sandbox="allow-scripts" srcdoc="([^"]+)".*', report._repr_html_()
    )
    assert unescape(frame[1]).replace('<base href="about:srcdoc">', "") == report.html
    report.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text("utf-8") == report.html
    with pytest.raises(UsageError, match=r"report\.html: exists already"):
        report.save(tmp_path / "report.html")
    written = rlpost.report(SAMPLE, tmp_path / "other.html")
    assert (tmp_path / "other.html").read_text("utf-8") == written.html
    assert written.responses == report.responses == 512


def test_progress_of_a_script_is_drawn_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    rlpost.inspect(FRAME)
    assert capsys.readouterr().err == ""
    rlpost.inspect(FRAME, progress=True)
    assert "100%" in capsys.readouterr().err


# Help


@pytest.mark.parametrize("model", [rlpost.Recipe, rlpost.LossOptions, rlpost.Numerics])
def test_help_of_options_has_each_field_once_and_fits_80_columns(model):
    text = pydoc.plain(pydoc.render_doc(model)).partition("Method resolution order")[0]
    assert "Annotated" not in text
    fields = text.partition("Fields:")[2]
    assert max(map(len, fields.splitlines())) <= 80
    for name, field in model.model_fields.items():
        assert fields.count(f"     {name} = ") == 1
        first = " ".join((field.description or "").split()[:3])
        assert first in " ".join(fields.replace(" | ", " ").split())
