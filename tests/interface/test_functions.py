"""The commands as Python functions: the same of tables as of paths, and as on the command line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pytest

import rlpost
from rlpost.errors import UsageError

SAMPLE = "sample_data/arithmetic.parquet"
FRAME = pl.read_parquet(SAMPLE)
TABLES = {
    "polars": lambda: FRAME,
    "pandas": FRAME.to_pandas,
    "duckdb": lambda: duckdb.read_parquet(SAMPLE),
}
UNEQUAL = {"inputs", "outputs", "input", "roles", "seconds", "bytes"}
UNEQUAL |= {"file"}  # of a pair's most different responses
UNEQUAL |= {"left_out", "shifts", "place"}  # by name of the input; of a sample of each row group


def results(found):
    """Return the numbers of a result to 12 digits: some are sums in the order of chunks."""
    return json.loads(
        json.dumps(found.to_dict()),
        parse_float=lambda number: f"{float(number):.12g}",
        object_pairs_hook=lambda pairs: {n: x for n, x in pairs if n not in UNEQUAL},
    )


@pytest.mark.parametrize("kind", TABLES)
def test_every_function_computes_the_same_of_a_table_as_of_its_file(kind, tmp_path, enriched):
    table, recipes = TABLES[kind](), {"a": rlpost.Recipe(), "b": rlpost.Recipe(estimator="rloo")}
    written = rlpost.advantages(table, tmp_path / "out.parquet")
    assert results(written) == results(enriched[1])
    assert pl.read_parquet(tmp_path / "out.parquet")["advantages"].to_list() == (
        pl.read_parquet(enriched[0])["advantages"].to_list()
    )
    if kind == "polars":
        assert results(rlpost.inspect(table)) == results(rlpost.inspect(SAMPLE))
        assert results(rlpost.loss(table)) == results(rlpost.loss(SAMPLE))
        assert results(rlpost.compare(table, recipes)) == results(rlpost.compare(SAMPLE, recipes))
    names = type(table).__name__
    assert written.inputs == rlpost.inspect(table).inputs == [names]


def test_tables_and_files_are_compared_side_by_side(enriched):
    table, _ = rlpost.enrich(FRAME, rlpost.Recipe(estimator="rloo"))
    found = rlpost.compare([enriched[0], table])
    assert found.sides == ["out.parquet", "DataFrame 1"]
    assert found.facts["response_same_sign:out.parquet:DataFrame 1"]["all"]["mean"] == 1.0


def test_a_sweep_computes_every_setting():
    found = rlpost.loss(FRAME, loss=rlpost.LossOptions(loss="ppo"), sweep={"pg_clip": [0.1, 0.2]})
    single = rlpost.loss(FRAME, loss=rlpost.LossOptions(pg_clip=0.1))
    assert len(found.settings) == 2
    assert found.settings[0]["facts"]["total_loss"] == single.facts["total_loss"]
    with pytest.raises(UsageError, match="--sweep and OUT exclude each other"):
        rlpost.loss(FRAME, "out.parquet", sweep={"pg_clip": [0.1]})


def test_a_dump_is_converted_as_by_the_command(tmp_path):
    lines = [
        {"prompt_id": f"p{i // 4}", "reward": float(i % 2), "response_mask": [1, 1, 0]}
        for i in range(8)
    ]
    dump = tmp_path / "dump.jsonl"
    dump.write_text("".join(json.dumps(line) + "\n" for line in lines))
    converted = rlpost.convert(dump, tmp_path / "canonical.parquet")
    assert converted.outputs == [str(tmp_path / "canonical.parquet")]
    assert rlpost.inspect(dump).responses == 8
    summary = rlpost.advantages(dump, tmp_path / "out.parquet")
    assert summary.inputs == [str(dump)]
    assert summary.tokens == {"all": 24, "policy": 16}


@pytest.mark.nightly
def test_a_users_script_passes_strict_type_checks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import polars as pl\n"
        "import rlpost\n\n"
        "frame: pl.DataFrame\n"
        "frame, summary = rlpost.enrich(pl.read_parquet('in.parquet'), rlpost.Recipe())\n"
        "lazy: pl.LazyFrame = rlpost.enrich(frame.lazy())[0]\n"
        "kept: int = summary.facts['kept']['all']['total']\n"
        "groups: int | None = summary.groups\n"
        "count: int = rlpost.inspect(frame).responses + rlpost.inspect(['a.parquet']).responses\n"
        "fine: bool = rlpost.verify('out.parquet').ok\n"
        "texts: list[str] = rlpost.loss(frame, loss=rlpost.loss_preset('verl')).warnings\n"
        "html: str = rlpost.report(frame, progress=True).html\n"
        "rlpost.Recipe(estimator='rloo', gama=0.9)  # type: ignore[call-arg]\n"
    )
    cache = ".mypy_cache/linux"  # of `.ci/run`, if that ran
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, script],
        capture_output=True,
        text=True,
        cwd=Path(rlpost.__file__).parents[1],
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_outputs_of_one_input_by_two_recipes_and_copies_are_verified(tmp_path):
    paths = [tmp_path / f"{name}.parquet" for name in ("grpo", "rloo", "copy")]
    for path, estimator in zip(paths, ("grpo", "rloo"), strict=False):
        rlpost.advantages(SAMPLE, path, rlpost.Recipe(estimator=estimator))
    shutil.copy(paths[0], paths[2])
    found = rlpost.verify(paths)
    assert found.ok
    assert len(found.files) == 3


def test_results_are_mappings_with_attributes(enriched):
    path, summary = enriched
    verdict = rlpost.verify(path)
    assert verdict.ok is verdict["ok"] is True
    assert summary.responses == summary["responses"] == 512
    assert {"facts", "to_dict"} <= {*dir(summary)}
    with pytest.raises(AttributeError, match=r"Summary has no 'reponses'; it has .* responses,"):
        summary.reponses  # noqa: B018
