"""Errors and warnings name the option as it is typed: the flag, the variable, the file's field."""

import ast
import re
from pathlib import Path

import pytest
from runs import rollout, run, save

import rlpost
from rlpost.recipe.flags import FLAGS, field_of, flag_of
from rlpost.recipe.loss import LossOptions

FIELDS = {"advantages": rlpost.Recipe.model_fields, "loss": LossOptions.model_fields}
# Any text is a value of these; a column or an estimator that does not exist is named by itself.
FREE = {"estimator", "columns", "reward_components", "episode_domains", "loss"}
WORDS = {
    "teachers": "large=x",
    "numerics": "norm_eps=x",
    "is_filter": "x",
    "emit": "x",
}
WIDTHS = {"reward_scale": 4, "overlong_penalty": 3, "group_length_penalty": 3, "is_mask": 2}


def is_switch(field):
    return "bool" in str(field.annotation)


OPTIONS = [
    (command, name)
    for command, fields in FIELDS.items()
    for name, field in fields.items()
    if not is_switch(field) and name not in FREE and name != "estimator_name"
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save(rollout(), tmp_path_factory.mktemp("options") / "in.parquet")


def plain(text):
    """The text in one line, without the frame that typer draws around its errors."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def wrong_words(command, name):
    """Words that are no value of the option, and a number out of its range."""
    word = WORDS.get(name, "x")
    if name in ("cov_seed", "version_offset"):  # any integer
        return [[word]]
    outside = "-1" if "int" in str(FIELDS[command][name].annotation) else "nan"
    return [[one] * WIDTHS.get(name, 1) for one in (word, outside)]


@pytest.mark.parametrize(("command", "name"), OPTIONS)
def test_a_wrong_value_is_an_error_that_names_the_flag(command, name, path, tmp_path):
    out = [tmp_path / "out.parquet"] if command == "advantages" else []
    for words in wrong_words(command, name):
        ran = run(command, path, *out, flag_of(name), *words)
        text = plain(ran.err)
        assert ran.code == 2, text
        assert re.search(rf"(error: |for '){flag_of(name)}\b", text), text
        if "_" in name:
            assert not re.search(rf"\b{name}\b", text), text


@pytest.mark.parametrize(("command", "name"), OPTIONS)
def test_the_variable_is_named_if_it_set_the_value(command, name, path, tmp_path, monkeypatch):
    out = [tmp_path / "out.parquet"] if command == "advantages" else []
    variable = "RLPOST_" + flag_of(name)[2:].upper().replace("-", "_")
    for words in wrong_words(command, name):
        monkeypatch.setenv(variable, " ".join(words))
        ran = run(command, path, *out)
        assert ran.code == 2
        assert variable in plain(ran.err)


def test_flags_and_fields_are_each_others_inverse():
    for name in {*FIELDS["advantages"], *FIELDS["loss"]}:
        assert field_of(flag_of(name)) == name
    assert {*FLAGS} <= {*rlpost.Recipe.model_fields, *FIELDS["loss"], "loss_options"}


CONFLICTS = {
    "--is-cap 2": "--is-cap without --is-weight",
    "--is-normalise": "--is-normalise without --is-weight",
    "--is-weight token --is-cap 1 --is-floor 2": "--is-floor 2.0 must not exceed --is-cap 1.0",
    "--is-weight token --is-mask 3 1": "--is-mask: LOW must be under HIGH",
    "--is-filter-where negative": "--is-filter-where negative needs an --is-filter",
    "--reward-clip-low 3": "--reward-clip-low needs a --reward-clip above it",
    "--max-len-mask": "--max-len-mask needs --max-response-length",
    "--overlong-penalty 3 9 1": "--overlong-penalty: BUFFER must not exceed MAX_LEN",
    "--reward-scale 3 1 0 1": "--reward-scale: LOW must be under HIGH",
    "--component-weights 1,2": "--component-weights: as many are needed",
    "--kl-target 1": "--kl-target needs --kl-coef above 0",
    "--difficulty-low 0.99": "--difficulty-low 0.99 must be under --difficulty-high 0.95",
    "--lam 0.9": "--lam has no effect with estimator grpo: gae and turn_gae read it",
    "--estimator rloo --gamma 0.9": "--gamma has no effect with estimator rloo",
    "--emit-only --replace": "--emit-only and --replace exclude each other",
    "--estimator gdpo": "--estimator gdpo needs --reward-components",
    "--estimator opd": "--estimator opd needs --teacher COLUMN=WEIGHT",
    "--estimator gdpo --reward-components reward --norm-mean batch": "--norm-mean batch: estimator",
    "--emit sample_weight": "needs --difficulty-weight, --length-weight or --age-decay",
    "--difficulty-weight": "no column for difficulty (--difficulty-weight)",
    "--drop-truncated": "no column for truncated (--drop-truncated)",
    "--drop-single --estimator raw --map group=none": "no column for group (--drop-single)",
}  # fmt: skip


@pytest.mark.parametrize("words", CONFLICTS)
def test_options_that_exclude_each_other_are_named_by_their_flags(words, path, tmp_path):
    ran = run("advantages", path, tmp_path / "out.parquet", *words.split())
    assert ran.code in (2, 3)
    text = " ".join(ran.err.split())
    assert CONFLICTS[words] in text
    assert "command line" not in text
    for name in FIELDS["advantages"]:
        if "_" in name and name != "sample_weight":
            assert not re.search(rf"(?<![\w-]){name}\b", text), text


def test_an_option_of_other_estimators_may_stand_where_every_run_reads_it(
    path, tmp_path, monkeypatch
):
    config = tmp_path / "recipe.toml"
    config.write_text("lam = 0.9\n")
    out = tmp_path / "out.parquet"
    ran = run("advantages", path, out, "--config", config)
    assert ran.code == 0, ran.err
    ran = run("advantages", path, out, "--overwrite", "--lam", "0.95")  # the default
    assert ran.code == 0, ran.err
    monkeypatch.setenv("RLPOST_LAM", "0.9")
    ran = run("advantages", path, out, "--overwrite")
    assert ran.code == 0, ran.err


def test_an_error_of_a_file_has_its_name(path, tmp_path):
    config = tmp_path / "recipe.toml"
    config.write_text("kl_target = 1.0\n")
    ran = run("advantages", path, tmp_path / "out.parquet", "--config", config)
    assert f"{config}: --kl-target needs --kl-coef above 0" in " ".join(ran.err.split())
    config.write_text("[loss]\ntis_low = 3.0\n")
    ran = run("loss", path, "--config", config, "--loss", "tis")
    assert f"{config}, [loss]: --tis-low 3.0 must not exceed" in " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("text", "words", "error"),
    [
        ('preset = "verll"', "", "no preset 'verll' tip: did you mean verl"),
        ("preset = 3", "", "preset is 3: a name is needed, see `rlpost presets`"),
        ('preset = ["verl"]', "", "preset is ['verl']: a name is needed"),
        (
            'preset = "verl"\nestimator = [1]',
            "",
            "estimator is [1]: must be a text",
        ),
        ("[numerics]\nnorm_eps = -1", "--numerics single=raw", "numerics.norm_eps is -1: "),
        ('[teachers]\nbig = "x"', "--teacher small=1", "teachers.big is 'x': "),
        ("difficulty_high = -1", "", "--difficulty-low 0.1 must be under --difficulty-high -1.0"),
        ("columns = 3", "--map reward=score", "columns is 3: a table [columns] is needed"),
        ("numerics = 3", "", "numerics is 3: a table [numerics] is needed"),
        ("loss = 3", "", "loss is 3: a table [loss] is needed"),
        ("[loss]\nloss = [1]", "", "[loss]: loss is [1]: must be a text"),
    ],
)
def test_an_error_of_a_file_has_its_name_beside_flags_of_the_same_table(
    text, words, error, path, tmp_path
):
    config = tmp_path / "recipe.toml"
    config.write_text(text)
    ran = run("loss", path, "--config", config, *words.split())
    assert ran.code == 2
    assert re.match(rf"error: {config}[:,] {re.escape(error)}", " ".join(ran.err.split()))


def test_a_flag_beside_a_table_of_the_file_is_named(path, tmp_path):
    config = tmp_path / "recipe.toml"
    config.write_text("[numerics]\nnorm_eps = 0.5\n")
    ran = run("loss", path, "--config", config, "--numerics", "norm_eps=-1")
    assert ran.err.startswith("error: --numerics norm_eps=-1: ")
    ran = run("loss", path, "--config", config, "--numerics", "nrm_eps=1")
    assert ran.err.startswith(
        "error: --numerics nrm_eps: no such field\n  tip: did you mean norm_eps"
    )


def test_the_option_that_is_set_is_named_if_the_other_one_has_its_default(
    path, tmp_path, monkeypatch
):
    error = "--difficulty-low 0.1 must be under --difficulty-high -1.0"
    out = tmp_path / "out.parquet"
    ran = run("advantages", path, out, "--difficulty-high", "-1")
    assert ran.err.startswith(f"error: {error}")
    monkeypatch.setenv("RLPOST_DIFFICULTY_HIGH", "-1")
    assert run("advantages", path, out).err.startswith(f"error: RLPOST_DIFFICULTY_HIGH: {error}")
    monkeypatch.delenv("RLPOST_DIFFICULTY_HIGH")
    monkeypatch.setenv("RLPOST_DIFFICULTY_LOW", "0.99")
    error = "RLPOST_DIFFICULTY_LOW=0.99 must be under --difficulty-high 0.95"
    assert run("advantages", path, out).err.startswith(f"error: {error}")


def test_a_variable_is_not_named_for_the_error_of_another_option(path, tmp_path, monkeypatch):
    monkeypatch.setenv("RLPOST_ESTIMATOR", "gae")
    ran = run("advantages", path, tmp_path / "out.parquet", "--emit", "gae")
    assert ran.err.startswith("error: --emit: no column 'gae' to write")


def texts(path):
    """The strings of a module that are no docstrings, and have several words."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {
        id(part.value)
        for node in ast.walk(tree)
        for part in (getattr(node, "body", None) if isinstance(getattr(node, "body", None), list)
                     else ())
        if isinstance(part, ast.Expr)
    }  # fmt: skip
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in alone else None
        if isinstance(text, str) and " " in text:
            yield text


def test_no_text_of_the_program_has_a_field_in_place_of_its_flag():
    fields = {name for of_model in FIELDS.values() for name in of_model if "_" in name}
    named = re.compile(rf"(?<![\w`./{{-])({'|'.join(sorted(fields))})(?![\w=.])")
    wrong = [
        f"{path}: {text}"
        for path in sorted(Path(rlpost.__file__).parent.rglob("*.py"))
        for text in texts(path)
        if named.search(text)
    ]
    assert wrong == []
