"""Runs on Ray: a real cluster of several nodes leaves the very files of a run in one process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed_runs import (
    LOCAL,
    MANNER,
    RAY,
    facts,
    recipes_of,
    same_columns,
    same_files,
    steps_table,
    write_files,
)

import rlpost
from rlpost.distributed.passes import InputPart
from rlpost.errors import DataError, UnavailableError, UsageError
from rlpost.manual import page

if find_spec("ray") is None:
    if os.environ.get("HYPOTHESIS_PROFILE") == "nightly":
        pytest.fail("ray is not installed: pip install 'rlpost[ray]'", pytrace=False)
    pytest.skip("ray is not installed: pip install 'rlpost[ray]'", allow_module_level=True)

import ray
import ray.data

import rlpost.ray
from rlpost.distributed import ray as on_ray

# Ray's own, of what Ray itself does.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


RECIPES = {
    "whitened": {"estimator": "gae", "kl_coef": 0.05, "whiten_advantages": True},
    "masks and weights": {
        "drop_difficulty": (0.1, 0.95),
        "length_weight": True,
        "advantage_clip": 0.5,
    },
    "running": {"norm_mean": "running", "norm_std": "running"},
    "positions": {"estimator": "optimal_token_baseline"},
}


@pytest.mark.parametrize("options", RECIPES.values(), ids=RECIPES)
def test_ray_leaves_the_bytes_of_a_run_in_one_process(cluster, tmp_path, options):
    assert len(cluster.list_all_nodes()) == 2
    write_files(steps_table(240), tmp_path / "in", 8)
    recipe = rlpost.Recipe(**options)
    want = rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, LOCAL)
    got = rlpost.advantages(tmp_path / "in", tmp_path / "ray", recipe, RAY)
    assert facts(got) == facts(want)
    assert got["engine"] == {
        "name": "ray",
        "tasks_at_once": 2,
        "partitions": got["engine"]["partitions"],
    }
    assert got["engine"]["partitions"] > 4
    same_files(tmp_path / "ray", tmp_path / "local")


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_is_killed_midway_changes_nothing(tmp_path):
    write_files(steps_table(120), tmp_path / "in", 6)
    deadly, harmless = recipes_of(tmp_path, kill=True)
    want = rlpost.advantages(tmp_path / "in", tmp_path / "local", harmless, LOCAL)
    got = rlpost.advantages(tmp_path / "in", tmp_path / "ray", deadly, RAY)
    assert (tmp_path / "killed").exists()
    assert got["facts"] == want["facts"]
    same_columns(tmp_path / "ray", tmp_path / "local")


@pytest.mark.usefixtures("cluster")
def test_errors_are_those_of_one_process(tmp_path):
    table = steps_table(40)
    values = table["values"].to_pylist()
    values[33][0] = float("nan")
    bad = table.set_column(table.schema.get_field_index("values"), "values", pa.array(values))
    write_files(bad, tmp_path / "in", 3)
    recipe = rlpost.Recipe(estimator="gae")
    told = []
    for options in (LOCAL, RAY):
        with pytest.raises(DataError) as caught:
            rlpost.advantages(tmp_path / "in", tmp_path / "out", recipe, options)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "part-2.parquet, row 6" in told[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("cluster")
def test_each_task_on_tokens_has_a_card_and_a_process_of_its_own():
    def here(part, rows):
        return (part.first, rows, os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.getpid()), None

    items, done = [(InputPart(0, 1), "a"), (InputPart(1, 1), "b")], []
    results = {}
    for device in ("cuda", "cpu"):
        options = rlpost.Options(device, workers=1)
        results[device] = [*on_ray.run_tasks("test", here, items, options, done.append)]
    assert sorted(done) == [0, 0, 1, 1]
    for values in results.values():
        assert [result[:2] for result, _ in values] == [(0, "a"), (1, "b")]
    assert {result[2] for result, _ in results["cuda"]} <= {"0", "1"}
    assert {result[2] for result, _ in results["cpu"]} == {""}
    assert len({result[3] for result, _ in results["cuda"]}) == 2
    assert on_ray.slots(1, "cuda") == on_ray.slots(1, "xpu") == 1
    assert on_ray.slots(1, "auto") == on_ray.slots(1, "cpu") == 2


@pytest.mark.usefixtures("cluster")
def test_what_does_not_go_together_is_said(tmp_path):
    write_files(steps_table(20), tmp_path / "in", 2)
    for options, told in ((rlpost.Options(engine="spark"), "local or ray is needed"),):
        with pytest.raises(UsageError, match=told):
            rlpost.advantages(tmp_path / "in", tmp_path / "out", None, options)
    for more in ({"device": "mtia"}, {"workers": 9}):
        options = rlpost.Options(engine="ray", **more)
        with pytest.raises(UnavailableError, match="no node with"):
            rlpost.advantages(tmp_path / "in", tmp_path / "out", None, options)
    second = rlpost.Options(engine="ray", device="cuda:1")
    with pytest.raises(UsageError, match="Ray chooses a card for each task; write --device cuda"):
        rlpost.advantages(tmp_path / "in", tmp_path / "out", None, second)
    rlpost.advantages(tmp_path / "in", tmp_path / "out", None, RAY)
    with pytest.raises(UsageError, match="exists already"):
        rlpost.advantages(tmp_path / "in", tmp_path / "out", None, RAY)
    over = rlpost.Options(engine="ray", overwrite=True)
    assert rlpost.advantages(tmp_path / "in", tmp_path / "out", None, over)["responses"] == 20


@pytest.mark.usefixtures("cluster")
def test_the_recipes_of_the_manual_for_ray_data_run(tmp_path, monkeypatch):
    table = pq.read_table("sample_data/arithmetic.parquet")
    monkeypatch.chdir(tmp_path)
    Path("sample_data").mkdir()
    pq.write_table(table, "sample_data/arithmetic.parquet", row_group_size=100)
    blocks = re.findall(r"<!-- needs: ray -->\n```python\n(.+?)```", page("python"), re.DOTALL)
    names = {"rlpost": rlpost}
    for block in blocks:
        exec(block, names)  # noqa: S102
    want = rlpost.enrich(table)[0]["advantages"].to_pylist()
    assert [[*row["advantages"]] for row in names["enriched"].take_all()] == want


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"emit_only": True}])
def test_a_dataset_gets_the_columns_that_a_table_gets(monkeypatch, options):
    table = steps_table(90)
    if "replace" in options:
        table = table.append_column("advantages", [[0.5]] * 90)
    recipe = rlpost.Recipe(estimator="reinforce_pp", kl_coef=0.1, **options)
    want, _ = rlpost.enrich(table, recipe)
    blocks = [table.slice(0, 40), table.slice(40, 0), table.slice(40, 50)]
    # Blocks of a filter come as they are ready, unless their order is asked for.
    monkeypatch.setattr(
        ray.data.DataContext.get_current().execution_options, "preserve_order", True
    )
    dataset = ray.data.from_arrow(blocks).filter(expr="step != 'x'")
    got = rlpost.ray.advantages(dataset, recipe)
    assert got.count() == 90
    parts = [ray.get(ref) for ref in got.to_arrow_refs()]
    made = pa.concat_tables([part for part in parts if part.num_rows])
    assert made.schema.names == want.schema.names
    for name in want.schema.names:
        assert made[name].to_pylist() == want[name].to_pylist(), name


@pytest.mark.usefixtures("cluster")
def test_a_dataset_that_lacks_a_column_says_which():
    dataset = ray.data.from_arrow(steps_table(9).drop_columns(["prompt_id"]))
    with pytest.raises(DataError, match=r"dataset: .*group"):
        rlpost.ray.advantages(dataset)
    with pytest.raises(DataError, match="no rows"):
        rlpost.ray.advantages(ray.data.from_arrow(steps_table(9).slice(0, 0)))


def test_a_missing_pandas_is_a_tip(monkeypatch):
    present = lambda name: None if name == "pandas" else name  # noqa: E731
    monkeypatch.setattr("rlpost.optional.find_spec", present)
    with pytest.raises(UnavailableError, match=r"needs pandas, .*pip install 'ray\[data\]"):
        rlpost.ray.advantages(None)


def test_runs_over_files_need_no_pandas():
    text = "import sys; sys.modules['pandas'] = None; import rlpost.distributed.ray"
    subprocess.run([sys.executable, "-c", text], check=True)


def test_the_command_line_joins_a_cluster(cluster, tmp_path):
    write_files(steps_table(60), tmp_path / "in", 5)
    rlpost.advantages(tmp_path / "in", tmp_path / "local", rlpost.Recipe(estimator="rloo"))
    words = [
        "in",
        "out",
        "--estimator",
        "rloo",
        "--engine",
        "ray",
        "--summary-json",
        "-",
        "--quiet",
    ]
    argv = [Path(sys.executable).with_name("rlpost"), "advantages", *words]
    argv += ["--ray-address", cluster.address]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr  # but Ray may tell of nodes that were lost before
    summary = json.loads(done.stdout)
    assert (summary["engine"]["name"], summary["responses"]) == ("ray", 60)
    assert set(summary) >= MANNER
    same_files(tmp_path / "out", tmp_path / "local")


def test_a_cluster_of_its_own_reads_and_writes_an_object_store(s3, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    write_files(steps_table(60), tmp_path / "in", 3)
    for path in (tmp_path / "in").iterdir():
        s3.put(f"in/{path.name}", path.read_bytes())
    rlpost.advantages(tmp_path / "in", tmp_path / "local")
    words = ["s3://lab/in/", "s3://lab/out/", "--engine", "ray", "--quiet"]
    argv = [Path(sys.executable).with_name("rlpost"), "advantages", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    names = s3.keys()
    made = {key: s3.get(key) for key in names if not key.startswith("in/")}
    want = {f"out/{path.name}": path.read_bytes() for path in (tmp_path / "local").iterdir()}
    assert made == want


def test_workers_that_have_another_rlpost_or_none_are_unavailable(tmp_path):
    with pytest.raises(UnavailableError, match=r"workers have rlpost .* and this is 0\.0\.0"):
        on_ray._task("0.0.0", str(tmp_path), [], None)
    lost = "The remote function failed to import on the worker\nNo module named 'rlpost'"
    error = ray.exceptions.RayTaskError("_task", lost, RuntimeError(lost))
    with (
        mock.patch("ray.get", side_effect=error),
        pytest.raises(UnavailableError, match=r"cannot import rlpost: .*on every node"),
    ):
        on_ray._got([])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_behind(cluster, tmp_path, number, code):
    write_files(steps_table(120), tmp_path / "in", 6)
    recipes_of(tmp_path, kill=False)
    words = ["in", "out", "--estimator", "own.py:deadly", "--engine", "ray"]
    argv = [Path(sys.executable).with_name("rlpost"), "advantages", *words]
    with subprocess.Popen(
        [*argv, "--ray-address", cluster.address],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        while not (tmp_path / "killed").exists() and run.poll() is None:
            time.sleep(0.05)
        run.send_signal(number)
        _, told = run.communicate(timeout=30)
    assert run.returncode == code, told
    assert b"Traceback" not in told
    assert b"received" not in told  # nor what Ray's own handler has to say
    assert not (tmp_path / "out").exists()
