"""Notebooks: views with charts, progress below the cell, and help."""

import pydoc
import re
import sys
from html import unescape
from types import ModuleType, SimpleNamespace

import polars as pl
import pytest

import rlpost
from rlpost.display import progress as bars
from rlpost.errors import UsageError

SAMPLE = "sample_data/arithmetic.parquet"
FRAME = pl.read_parquet(SAMPLE)


class Cell(ModuleType):
    """IPython with a kernel, as far as progress needs it: the displays of one cell."""

    def __init__(self, name):
        super().__init__(name)
        self.shown = []
        self.shell = SimpleNamespace(kernel=object())

    def get_ipython(self):
        return self.shell

    def display(self, data, *, raw, display_id):
        assert raw
        assert display_id
        self.shown.append([data])
        return SimpleNamespace(update=lambda data, **_: self.shown[-1].append(data))


@pytest.fixture
def cell(monkeypatch):
    module = Cell("IPython")
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(bars, "_AFTER", 0)
    monkeypatch.setattr(bars, "_EVERY", 0)
    return module


STEPS = [
    "Mean raw reward",
    "Groups with signal",
    "Advantages of exactly 0",
    "Std of advantages",
]
OF_ROWS = ["Rewards", "Lengths", "Advantages", "Pass rates of groups", "Pass@k"]
RESULTS = {
    "advantages": (STEPS, lambda path: rlpost.advantages(SAMPLE, path.with_name("a.parquet"))),
    "inspect": (OF_ROWS, rlpost.inspect),
    "verify": ([], rlpost.verify),
    "loss": ([], rlpost.loss),
    "sweep": ([], lambda path: rlpost.loss(path, sweep={"pg_clip": [0.1, 0.2]})),
    "compare": ([], lambda path: rlpost.compare([path, path])),
    "replay": ([], lambda path: rlpost.replay(path, rlpost.Recipe())),
}
TITLES = {"advantages": "a.parquet · grpo", "sweep": "rlpost loss · "}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_shows_what_its_command_prints_and_the_reports_charts(name, enriched, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    charts, call = RESULTS[name]
    result = call(enriched[0])
    text = repr(result)
    assert text.startswith(TITLES.get(name, f"rlpost {name} · "))
    assert max(map(len, text.splitlines())) <= 90
    assert "\x1b" not in text
    html = result._repr_html_()
    assert html.startswith("<style>")
    assert html.count('<section class="rlpost-page">') == 1
    assert html.count("<pre") == html.count('<pre class="rlpost-picture">')
    assert re.findall("<figure><figcaption><b>(.+?)</b></figcaption><svg", html) == charts


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


def test_a_notebook_shows_progress_and_nothing_is_left(cell, tmp_path):
    rlpost.advantages(SAMPLE, tmp_path / "out.parquet", rlpost.Recipe(estimator="reinforce_pp"))
    (shown,) = cell.shown  # one display, updated
    assert shown[-1] == {"text/html": "", "text/plain": ""}
    texts = [data["text/plain"] for data in shown[:-1]]
    assert [text.partition("  ")[0] for text in texts] == [
        "1/2 read responses: 100 %", "2/2 write: 100 %"
    ]  # fmt: skip
    assert '<progress value="512" max="512"' in shown[0]["text/html"]


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("inspect", "statistics: 100 %"),
        ("enrich", "2/2 write: 100 %"),
        pytest.param("loss", "2/2 loss: 100 %", marks=pytest.mark.nightly),
        pytest.param("report", "statistics: 100 %", marks=pytest.mark.nightly),
        pytest.param("compare", "compare: 100 %", marks=pytest.mark.nightly),
    ],
)
def test_every_function_shows_progress_in_a_notebook(name, last, cell):
    recipes = [{"a": rlpost.Recipe(), "b": rlpost.Recipe(estimator="rloo")}]
    getattr(rlpost, name)(FRAME, *(recipes if name == "compare" else ()))
    assert cell.shown[0][-2]["text/plain"].startswith(last)


def test_no_progress_is_shown_if_not_requested_or_without_a_kernel(cell):
    rlpost.inspect(FRAME, progress=False)
    cell.shell = SimpleNamespace()  # IPython in a terminal
    rlpost.inspect(FRAME)
    assert cell.shown == []


def test_a_failed_run_removes_its_bar(cell):
    broken = FRAME.with_columns(old_log_probs=pl.lit(None))
    with pytest.raises(rlpost.errors.DataError):
        rlpost.enrich(broken, rlpost.Recipe(kl_coef=0.1))
    assert all(shown[-1]["text/html"] == "" for shown in cell.shown)


def test_progress_of_a_script_is_drawn_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    rlpost.inspect(FRAME)
    assert capsys.readouterr().err == ""
    rlpost.inspect(FRAME, progress=True)
    assert "100 %" in capsys.readouterr().err


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
