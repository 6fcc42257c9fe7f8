"""The manual and README do what they show: their commands, snippets, tables, options and links."""

from __future__ import annotations

import doctest
import json
import re
import shlex
import shutil
import sys
import tomllib
from contextlib import chdir, redirect_stdout
from importlib.util import find_spec
from typing import TYPE_CHECKING

import format_writers as writers
import format_writers_text as writers_text
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from manual.pages import HOME, PAGES, refreshed
from manual.program import ROOT, Terminal, commands, run

import rlpost
from rlpost.cli.commands.about import _show_page, for_terminal, show_help
from rlpost.manual import OF_COMMANDS, TOPICS, page
from rlpost.recipe.recipe import without_loss

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = re.DOTALL | re.MULTILINE
RUN = re.compile(r"(?:^<!-- needs: (\w+) -->\n)?^```(bash|python)\n(.+?)^```$", BLOCK)
INLINE = re.compile(r"`([^`\n]+)`")
CODE = re.compile(r"^```(\w*)\n(.+?)^```$", BLOCK)
LINK = re.compile(r"\]\(([^)\s]+)\)")
OF_PROGRAM = {
    "--help",
    "--help-all",
    "--debug",
    "--version",
    "--install-completion",
    "--show-completion",
}
by_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


def blocks(path: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.+?)^```$", text, BLOCK)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the files that the pages' commands read."""
    home = tmp_path_factory.mktemp("files")
    shutil.copytree(ROOT / "sample_data", home / "sample_data")
    sample = home / "sample_data" / "arithmetic.parquet"
    table = pq.read_table(sample)
    parts = [table.filter(pc.field("step") == step).slice(0, 64) for step in range(4)]
    table = pa.concat_tables(parts)
    pq.write_table(table, sample)
    for step in (0, 1):
        folder = home / "dumps" / f"step={step}"
        folder.mkdir(parents=True)
        pq.write_table(parts[step].drop_columns("step"), folder / "rollouts.parquet")
    names = ["loss_mask" if name == "response_mask" else name for name in table.column_names]
    pq.write_table(table.rename_columns(names), home / "loss-mask.parquet")
    for name, estimator in (("a", "grpo"), ("b", "rloo")):
        recipe = rlpost.Recipe(estimator=estimator)
        rlpost.advantages(sample, home / f"run-{name}.parquet", recipe)
        (home / f"{name}.toml").write_text(f'estimator = "{estimator}"\n')
    samples = writers.made()
    (home / "logs").mkdir()
    shutil.copy(writers.nemo_rl(home / "nemo", samples), home / "logs" / "train_data_step7.jsonl")
    shutil.copytree(writers.slime_train(home / "slime", samples).parent, home / "dump/train_data")
    (home / "rollout_data").mkdir()
    (home / "completions").mkdir()
    texts = writers_text.rollouts(steps=1)
    writers_text.verl(home / "rollout_data" / "1.jsonl", texts)
    writers_text.trl(home / "completions" / "completions_00001.parquet", texts)
    written = ROOT / "tests" / "written" / "evaluations"
    shutil.copytree(written / "verifiers", home / "evaluations")
    shutil.copy(written / "inspect_ai.eval", home / "evaluations" / "products.eval")
    lines = [
        f'{{"prompt": "p{i % 2}", "task": {{"id": {i % 2}}}, "scores": {{"total": {i}}}}}\n'
        for i in range(4)
    ]
    (home / "mine.jsonl").write_text("".join(lines))
    return home


@pytest.fixture
def folder(files, tmp_path):
    """A copy of these files that a test may write to."""
    return shutil.copytree(files, tmp_path / "work")


def write_examples(path: Path, folder: Path) -> None:
    """Write the files that a page shows: its recipe, and the module that it names."""
    for text in blocks(path, "toml"):
        if not text.startswith("# "):
            (folder / "recipe.toml").write_text(text, encoding="utf-8")
    for text in blocks(path, "py"):
        name = re.match(r"# (\w+\.py)\n", text)
        assert name, f"{path.name}: a py block begins with the name of its file"
        (folder / name[1]).write_text(text, encoding="utf-8")


# Blocks of code


@by_page
def test_blocks_run_one_after_the_other(path, folder, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    if "datasets" in sys.modules:
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(folder / "cache"))
    write_examples(path, folder)
    skipped = 2 if path.name == "README.md" else 0  # test_readme.py has those two
    names: dict[str, object] = {}
    missing = []
    for needs, language, text in RUN.findall(path.read_text("utf-8"))[skipped:]:
        if needs == "ray":
            continue  # tests/distributed/test_ray.py runs these in its cluster
        if language == "python" and "<!-- result" in path.read_text("utf-8"):
            continue  # test_tables_and_outputs_are_current runs these
        if needs and find_spec(needs) is None:
            missing.append(needs)
            continue
        if language == "bash":
            for line in re.sub(r"\\\n|^#.*$", " ", text, flags=re.MULTILINE).splitlines():
                if line.strip():
                    run_line(line, folder)
        else:
            with chdir(folder):
                exec(compile(text, str(path), "exec"), names)  # noqa: S102
    if missing:
        pytest.skip(f"all blocks ran but those of {missing}, which is not installed")


def run_line(line: str, folder: Path) -> None:
    """Run a line of commands, each in this process; `> FILE` is understood."""
    for part in line.split(" && "):
        words = shlex.split(part, comments=True)
        target = folder / words.pop() if ">" in words else None
        program, *words = [word for word in words if word != ">"]
        assert program == "rlpost", line
        done = run(words, folder)
        assert done.code == 0, f"{part}\n{done.err}{done.out}"
        if target is not None:
            target.write_text(done.out, encoding="utf-8")


@by_page
def test_recipes_are_valid(path):
    for text in blocks(path, "toml"):
        table = tomllib.loads(text)
        if not text.startswith("# "):
            rlpost.Recipe.of(without_loss(table))


def test_few_blocks_are_not_run_and_say_why():
    known = {"bash", "sh", "text", "python", "py", "toml", "yaml", ""}
    count = 0
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert {*re.findall(r"^```(.*)$", text, flags=re.MULTILINE)} <= known, path
        for block in re.finditer(r"^```sh$", text, flags=re.MULTILINE):
            before = text[: block.start()].splitlines()[-1]
            assert re.fullmatch(r"<!-- not run: .+ -->", before), before
            count += 1
    assert count <= 10


# What pages name


@by_page
def test_tables_and_outputs_are_current(path):
    text = path.read_text(encoding="utf-8")
    assert refreshed(text) == text, "refresh it: .venv/bin/python -m tests.manual"


@by_page
def test_options_exist(path):
    by_command = {
        name: {
            flag
            for option in command.params
            if option.param_type_name == "option"
            for flag in (*option.opts, *option.secondary_opts)
        }
        for name, command in commands().items()
    }
    every = OF_PROGRAM.union(*by_command.values())
    text = path.read_text(encoding="utf-8")
    for words in INLINE.findall(text):
        if words.startswith("--") and not words.endswith("-"):  # `--no-` is the start of several
            assert words.split()[0] in every, words
        if words.startswith("rlpost "):
            flags = {word for word in re.split(r"[\s=]", words) if word.startswith("--")}
            command = max((name for name in by_command if words[7:].startswith(name)), default="")
            assert flags <= by_command.get(command, set()) | OF_PROGRAM, words


@by_page
def test_links_resolve(path):
    text = path.read_text(encoding="utf-8")
    for link in LINK.findall(re.sub(r"^```.*?^```$", "", text, flags=BLOCK)):
        target, _, anchor = link.partition("#")
        if target.startswith("http"):
            continue
        other = path.parent / target if target else path
        assert other.is_file(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", other.read_text("utf-8"), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", x).lower().replace(" ", "-") for x in headings}


@by_page
def test_files_and_modules_of_the_repository_exist(path):
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"(?<![\w/])(?:tests|\.ci|\.github)/[\w./-]*\w", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"python -m (tests[.\w]*)", text):
        home = ROOT / name.replace(".", "/")
        assert home.with_suffix(".py").is_file() or (home / "__main__.py").is_file(), name


def test_the_manual_can_be_read():
    """15 pages, each a topic, a title and a command first; README is short."""
    assert {*TOPICS} == {path.stem for path in HOME.glob("*.md")}
    assert len(TOPICS) == 15
    words = {topic: len(page(topic).split()) for topic in TOPICS}
    assert sum(words.values()) <= 28_500, words
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900
    for topic, about in TOPICS.items():
        assert page(topic).startswith("# "), topic
        assert re.fullmatch(r".{1,59}\.", about), topic
        first = re.search(
            r"^<!-- (?:not run|output)[^\n]*-->$|^```(\w+)$", page(topic), re.MULTILINE
        )
        assert first
        assert first[1] in (None, "bash", "python"), topic
    assert {OF_COMMANDS.get(name.split()[0], name.split()[0]) for name in commands()} <= {*TOPICS}


def test_the_python_page_has_every_public_name():
    text = page("python")
    public = [name for name in rlpost.__all__ if not name.startswith("_")]
    assert [name for name in public if f"`rlpost.{name}" not in text] == []


def test_pages_describe_every_key_of_json_and_metadata(tmp_path):
    sample, out = ROOT / "sample_data" / "calculator.parquet", tmp_path / "out.parquet"
    words = ["--is-weight", "token", "--difficulty-weight", "--preset", "verl"]
    done = run(["advantages", str(sample), str(out), *words, "--summary-json", "-"])
    summary = json.loads(done.out)
    metadata = pq.read_schema(out).metadata
    own = {key.decode() for key in metadata if key.startswith(b"rlpost.")}
    loss = json.loads(run(["loss", str(sample), "--unit", "row", "--format", "json"]).out)
    inspected = json.loads(run(["inspect", str(sample), "--format", "json"]).out)
    for topic, keys in (
        ("guarantees", own),
        ("screens", {*summary}),
        ("inspect", {*inspected} - {*summary}),
        ("loss", {row["measure"] for row in loss["facts"]}),
        ("loss", loss.keys() - summary.keys()),
    ):
        named = INLINE.findall(page(topic))
        described = {*named, *(words.split(".")[0] for words in named)}
        assert sorted(keys - described) == [], topic


# Pages and topics


def test_help_lists_topics_and_prints_pages():
    listed = run(["help"])
    assert listed.code == 0
    assert all(topic in listed.out for topic in TOPICS if topic != "index")
    printed = run(["help", "advantages"]).out
    assert printed.startswith("# Advantages\n")
    assert "```bash" in printed
    assert "<!--" not in run(["help", "estimators"]).out
    assert run(["help", "adv"]).out == printed


FOUND = {
    "reward_clip_frac": "reward_clipped",
    "actor/pg_clipfrac": "clip_frac",
    "critic/rewards/mean": "reward",
    "frac_reward_zero_std": "no signal",
    "completions/clipped_ratio": "truncated",
    "verl": "verl-project/verl",
    "grpo": "(r - mean_g)",
    "mismatch": "log-probs",
    "dapo": "rlpost help",
    "--reward-clip": "Clamp rewards",
    "pg_clip": "Clip range",
    "old_log_probs": "off-policy correction",
    "equal_rewards": "Groups whose rewards are equal",
    "shifted_lists": "offset by one token",
    "no signal": "equal",
    "dead": "no signal",
    "flow": "left after each mask",
    "prompts that never pass": "--about groups",
    "dead domains": "--about domains",
    "exit code 1": "exit codes",
    "ε": "help",
}
"""Words, and what the answer of `rlpost help WORD` has."""


@pytest.mark.parametrize("word", FOUND)
def test_help_explains_options_names_and_metrics_of_frameworks(word):
    done = run(["help", *word.split()])
    assert (done.code, done.err) == (0, "")
    assert FOUND[word] in done.out


def test_help_suggests_names_that_look_alike():
    done = run(["help", "frameworcs"])
    assert (done.code, done.out) == (2, "")
    assert "did you mean" in done.err
    assert "rlpost help  # lists" in run(["help", "zzz"]).err


def test_links_become_commands():
    outcome = doctest.testmod(sys.modules[for_terminal.__module__])
    assert (outcome.failed, outcome.attempted) == (0, 2)


@by_page
def test_a_terminal_gets_a_page_without_markup_and_code_as_it_is(path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    source = path.read_text("utf-8")
    with redirect_stdout(Terminal()) as terminal:
        if path.parent == HOME:
            show_help([path.stem])
        else:
            _show_page(source)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    code = [(language, block.rstrip()) for language, block in CODE.findall(source)]
    assert [block for _, block in code if f"\n{block}\n" not in shown] == []
    if path.parent == HOME:
        lines = {line for _, block in code for line in block.split("\n")}
        assert max(len(line) for line in shown.splitlines() if line not in lines) <= 80
        assert "```" not in shown
        assert not re.search(r"\w\(\S*\.md\)|<!--|\.\./", shown)
        for language, block in code:
            if language in ("bash", "sh"):
                assert max(map(len, block.splitlines())) <= 78
