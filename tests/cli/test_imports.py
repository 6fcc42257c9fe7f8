"""What each command imports of large libraries, and of the rooms of other commands.

numpy computes on the CPU, so no command imports torch.
"""

import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from format_writers_text import rollouts, verl
from runs import rollout, run, save

LARGE = ("torch", "polars", "altair", "ray", "textual")
ROOMS = ("rlpost.analysis", "rlpost.formats", "rlpost.losses")
PROGRAM = """
import sys
sys.argv = ["rlpost", *sys.argv[1:]]
from rlpost.cli.main import _run
code = _run()
print("IMPORTED", *(name for name in {large} if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""
COMMANDS = {
    "advantages": (
        ["advantages", "IN", "NEW", "--estimator", "reinforce", "--kl-coef", "0.1"],
        set(),
    ),
    "directory": (["advantages", "FOLDER", "NEW_FOLDER"], set()),
    "plan": (["advantages", "IN", "NEW", "--plan"], set()),
    "dump": (["advantages", "DUMP", "CONVERTED"], {"rlpost.formats"}),
    "update": (["advantages", "FOLDER", "UPDATED", "--update"], {"rlpost.formats"}),
    "inspect": (["inspect", "IN"], {"polars", "rlpost.analysis"}),
    "verify": (["verify", "OUT"], {"rlpost.analysis"}),
    "loss": (
        ["loss", "OUT", "--map", "log_probs=old_log_probs"],
        {"rlpost.analysis", "rlpost.losses"},
    ),
    "gradient": (
        ["loss", "OUT", "GRADIENT", "--map", "log_probs=old_log_probs", "--emit", "loss_gradient"],
        {"rlpost.analysis", "rlpost.losses"},
    ),
    "compare": (["compare", "OUT", "OUT"], {"rlpost.analysis"}),
    "replay": (["replay", "OUT"], {"rlpost.analysis"}),
    "shards": (["plan", "IN", "SHARDS", "--state-dir", "STATE"], set()),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """An input, its output, a dump, a folder of inputs, and what commands write."""
    folder = tmp_path_factory.mktemp("imports")
    source, target = save(rollout(16), folder / "in.parquet"), folder / "out.parquet"
    assert run("advantages", source, target, "-q").code == 0
    save(rollout(16), folder / "FOLDER/a.parquet")
    dump = verl(folder / "1.jsonl", rollouts())
    names = ("CONVERTED", "GRADIENT", "NEW_FOLDER", "SHARDS", "STATE", "UPDATED")
    files = {"IN": source, "OUT": target, "NEW": folder / "new.parquet", "DUMP": dump}
    return {**files, "FOLDER": folder / "FOLDER", **{name: folder / name for name in names}}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_imports_only_the_libraries_and_rooms_that_it_needs(name, files):
    words, wanted = COMMANDS[name]
    program = [sys.executable, "-c", PROGRAM.format(large=LARGE + ROOMS)]
    arguments = [str(files.get(word, word)) for word in words]
    ran = subprocess.run([*program, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stderr  # findings
    assert {*ran.stderr.rpartition("IMPORTED")[2].split()} == wanted


def test_a_users_estimator_of_arrays_imports_no_torch_and_one_of_tensors_does(files, tmp_path):
    for library, expected in (("numpy", set()), ("torch", {"torch"})):
        file = tmp_path / f"of_{library}.py"
        file.write_text(f"import {library}\n\n\ndef centred(rewards):\n"
                        f"    assert isinstance(rewards, {library}.{TYPES[library]})\n"
                        "    return rewards - rewards.mean()\n")  # fmt: skip
        program = [sys.executable, "-c", PROGRAM.format(large=LARGE), "advantages"]
        words = [files["IN"], tmp_path / f"{library}.parquet", "--estimator", f"{file}:centred"]
        ran = subprocess.run([*program, *map(str, words)], capture_output=True, text=True,
                             check=False)  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert {*ran.stderr.rpartition("IMPORTED")[2].split()} == expected
    left, right = (tmp_path / f"{library}.parquet" for library in ("numpy", "torch"))
    assert pq.read_table(left)["advantages"] == pq.read_table(right)["advantages"]


TYPES = {"numpy": "ndarray", "torch": "Tensor"}
