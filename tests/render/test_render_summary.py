"""The page of a run: what is on it, in which order, and at 80 columns."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compared_files import ARITHMETIC as SAMPLE
from rich.console import Console

import rlpost
from rlpost import Recipe
from rlpost.errors import FindingsError
from rlpost.render.summary import page as summary_page


def lines_of(page, width=80):
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    page.show(out)
    return out.file.getvalue().splitlines()


def ran(tmp_path, **options):
    out = tmp_path / "out.parquet"
    return rlpost.advantages(SAMPLE, out, Recipe(**options), rlpost.Options(overwrite=True))


def test_the_summary_of_the_sample_has_24_lines_and_what_is_off_prints_nothing(tmp_path):
    lines = lines_of(summary_page(ran(tmp_path) | {"inputs": ["in"], "outputs": ["out"]}))
    assert len(lines) <= 24
    text = "\n".join(lines)
    for word in ("Clipped", "Responses that train", "weight", "return", "critic", "engine"):
        assert word not in text
    order = ["43 of 64", "passes of 8", "A<0 36 %", "flow", "raw reward", "mul", "add", "✓ "]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    verbose = lines_of(summary_page(ran(tmp_path), verbose=True))
    assert any("device: cpu" in line for line in verbose)
    assert not any("device: cpu" in line for line in lines)


def test_responses_without_tokens_are_counted_by_their_signs():
    table = pa.table({"prompt_id": [*"aabb"], "reward": [0.0, 1.0, 1.0, 1.0]})
    text = "\n".join(lines_of(summary_page(rlpost.enrich(table, Recipe())[1]), 120))
    assert "1 of 2 groups train" in text
    assert "responses     A<0 25 % " in text
    assert "flow          4 → 2 with signal\n" in text
    same = rlpost.enrich(table.slice(0, 2), Recipe())[1]
    assert "flow" not in "\n".join(lines_of(summary_page(same), 120))


@pytest.mark.parametrize(
    ("outputs", "folder"),
    [
        (("out/a.parquet", "out/b.parquet"), "out"),
        (("out/step=1/a.parquet", "out/step=2/a.parquet"), "out"),
        (("s3://lab/out/a.parquet", "s3://lab/out/b.parquet"), "s3://lab/out"),
        (("/1/a.parquet", "/2/a.parquet"), "/"),
        (("1/a.parquet", "2/a.parquet"), "."),
    ],
)
def test_several_files_are_named_by_the_folder_that_has_them_all(tmp_path, outputs, folder):
    summary = ran(tmp_path) | {"inputs": [*outputs], "outputs": [*outputs]}
    lines = lines_of(summary_page(summary), 200)
    assert lines[0].startswith(f"2 files of {folder} · ")
    assert f"2 files of {folder} written" in lines[-2]
    assert f"rlpost report {folder} " in lines[-1]


def test_masks_are_a_funnel_that_adds_up(tmp_path):
    one = "sequence:ratio:0.9:1.1"
    masks = {"drop_truncated": True, "drop_equal_rewards": True, "is_filter": (one,)}
    text = "\n".join(lines_of(summary_page(ran(tmp_path, **masks))))
    rows = {"--drop-truncated": 31, "--drop-equal-rewards": 152, f"--is-filter {one}": 4}
    numbers = {flag: text.partition(flag)[2].split()[0] for flag in rows}
    assert numbers == {flag: f"-{count}" for flag, count in rows.items()}
    assert text.partition("\nkept")[2].split()[0] == str(512 - sum(rows.values()))


def test_no_signal_is_the_last_word_in_red():
    table = pq.read_table(SAMPLE)
    reward = table.schema.get_field_index("reward")
    zeros = table.set_column(reward, "reward", [[0.0] * len(table)])
    summary = rlpost.enrich(zeros)[1]
    page = summary_page(summary)
    assert page.verdict.severity == "error"
    assert "10,991" in page.verdict.text
    assert "`reward`" in page.verdict.advice
    assert page.notices == []
    assert lines_of(page)[-1].strip()[0] != "✓"


def test_findings_that_fail_a_run_are_on_its_page_and_nothing_is_written(tmp_path):
    recipe = Recipe(drop_longer=20)  # warns of longer responses
    with pytest.raises(FindingsError) as caught:
        rlpost.advantages(SAMPLE, tmp_path / "o.parquet", recipe, rlpost.Options(fail_on="warning"))
    page = summary_page(caught.value.summary)
    assert page.verdict is None
    (worst,) = (line for line in lines_of(page, 500) if line.startswith("worst "))
    lengths = pq.read_table(SAMPLE)["response_mask"].to_pylist()
    first = next(row for row, mask in enumerate(lengths) if sum(mask) > 20)
    assert f"over_limit: {SAMPLE}:{first}, " in worst
    assert [one.severity for one in page.notices] == ["warning"]
    assert not (tmp_path / "o.parquet").exists()
