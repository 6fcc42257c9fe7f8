"""Errors that a user can hit: a sentence that names the option, its code, what to do below it."""

from __future__ import annotations

import math
import re

import pyarrow as pa
import pytest
from runs import rollout, run, save

import rlpost
from rlpost.errors import ReadWriteError
from rlpost.recipe.flags import FLAGS, field_of, flag_of
from rlpost.recipe.loss import LossOptions

FIELDS = {"advantages": rlpost.Recipe.model_fields, "loss": LossOptions.model_fields}
COLUMNS = rollout().column_names
REWARDS = rollout()["reward"].to_pylist()
TOML = {
    "gama": "gama = 1\n",
    "broken": "gamma\n",
    "device": 'device = "cuda"\n',
    "lam": "lam = 0.5\n",
    "kl": "kl_target = 1.0\n",
    "tis": '[loss]\nloss_options = {weight = "3:1"}\n',
    "preset": 'preset = "verll"',
    "preset3": "preset = 3",
    "estimator": 'preset = "verl"\nestimator = [1]',
    "eps": "[numerics]\nnorm_eps = -1",
    "teacher": '[teachers]\nbig = "x"',
    "difficulty": "drop_difficulty = '1:-1'",
    "columns": "columns = 3",
    "numerics": "numerics = 3",
    "loss": "loss = 3",
    "loss1": "[loss]\nloss = [1]",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Good files, some that lack something, and recipes."""
    home = tmp_path_factory.mktemp("errors")
    table = rollout()
    save(table.append_column("log_probs", table["old_log_probs"]), home / "in.parquet")
    save(table.rename_columns(["prompt" if x == "prompt_id" else x for x in COLUMNS]),
         home / "nogroup.parquet")  # fmt: skip
    named = table.append_column("reward_correct", pa.array(REWARDS))
    save(named.append_column("reward_format", pa.array(REWARDS)).drop_columns(["reward"]),
         home / "noreward.parquet")  # fmt: skip
    save(table.drop_columns(["ref_log_probs"]), home / "noref.parquet")
    save(table.append_column("returns", pa.array(REWARDS)), home / "returns.parquet")
    nan = pa.array([*REWARDS[:5], math.nan, *REWARDS[6:]], table.schema.field("reward").type)
    save(table.set_column(COLUMNS.index("reward"), "reward", nan), home / "bad.parquet")
    for name, text in TOML.items():
        (home / f"{name}.toml").write_text(text)
    return home


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


# Command line, beginning with `advantages in.parquet o` unless a command is named; texts.
TWO = """
--estimater grpo | --estimater | did you mean --estimator
--gama 1 | --gamma
--no-such-flag | --no-such-flag
--reward-clip abc | --reward-clip abc: must be C above 0
--reward-clip 0 | --reward-clip 0: | above 0
--gamma | --gamma: requires an argument
--gamma x | error: --gamma x: must be a valid number, unable to parse
--gamma=x | error: --gamma x: must be a valid number, unable to parse
--gamma 1.5 | error: --gamma 1.5: must be less than or equal to 1
--overlong-penalty 3 4 | --overlong-penalty | 3
--overlong-penalty 20 4 x | --overlong-penalty 20 4 x: must be a valid number
--overlong-penalty 3 9 1 | --overlong-penalty: BUFFER must not exceed MAX_LEN
--quiet=1 | --quiet
--chunk-tokens 0 | --chunk-tokens 0: must be greater than 0
--norm-std grup | --norm-std grup | batch | did you mean group
--kl-coef -1 | --kl-coef -1: must be greater than or equal to 0
--estimator grop | no estimator 'grop' did you mean grpo?
--estimator nosuchthing | no estimator 'nosuchthing' tip: # there are gae,
--preset verll | --preset: no preset 'verll' did you mean verl?
--step-gamma 1 | no option --step-gamma did you mean --option step_gamma=VALUE (gigpo,
--pg-clip 1 | no option --pg-clip tip: # `rlpost loss` has it
--config gama.toml | gama.toml: no option 'gama' | did you mean gamma?
--config broken.toml | broken.toml: not valid TOML
--config device.toml | device.toml: no option 'device': it is no part | or RLPOST_DEVICE
--config kl.toml | kl.toml: --kl-target needs --kl-coef above 0
--config columns.toml --map reward=reward | columns.toml: columns is 3
--config numerics.toml --numerics single=raw | numerics.toml: numerics is 3
--map reward | --map reward: write it NAME=VALUE
--map rewrd=reward | no role 'rewrd' | did you mean reward?
--numerics single | --numerics single: write it NAME=VALUE
--numerics sinlge=raw | --numerics sinlge: no such field did you mean single?
--numerics norm_eps=-1 | --numerics norm_eps=-1: | 0
--emit advantage | no column 'advantage' | did you mean advantages
--emit kl,kl | kl
--emit sample_weight | needs --difficulty-weight, --length-weight or --age-decay
--device tpu | --device tpu: auto, cpu, cuda, cuda:N or another
--plan --device gpu | --device gpu: | tip: # torch calls cards of
--is-cap 2 | --is-cap without --is-weight
--is-weight tokn | --is-weight tokn: must be 'token', | did you mean token
--is-weight token --is-cap 2:1 | --is-cap 2:1: must be CAP above 0, or FLOOR:CAP
--is-weight token --is-mask 3:1 | --is-mask 3:1: must be LOW:HIGH, with LOW under HIGH
--is-filter token:k2::1:positive | 'positive' is none of any, negative, diverging
--reward-clip 3:-1 | --reward-clip 3:-1: must be C above 0, for -C:C, or LOW:HIGH
--reward-scale 3 1 0 1 | --reward-scale: LOW must be under HIGH
--component-weights 1,2 | --component-weights: as many are needed
--kl-target 1 | --kl-target needs --kl-coef above 0
--kl-coef 0.1 --kl-target 1:0 | error: --kl-target 1:0: must be VALUE or VALUE:HORIZON
--drop-difficulty 0.99:0.95 | error: --drop-difficulty 0.99:0.95: must be LOW:HIGH, with LOW under
--drop-difficulty 0.2 0.9 | error: --drop-difficulty 0.2: must be LOW:HIGH
--lam 0.9 | --lam has no effect with estimator grpo: gae and turn_gae read it
--estimator rloo --gamma 0.9 | --gamma has no effect with estimator rloo
--emit-only --replace | --emit-only and --replace exclude each other
--estimator gdpo | --estimator gdpo needs --reward-components
--estimator opd | --estimator opd needs --teacher COLUMN=WEIGHT
--estimator gdpo --reward-components reward --norm-mean batch | --norm-mean batch: estimator
advantages | IN
advantages in.parquet | OUT
advantages in.parquet bad.parquet | bad.parquet: OUT is a Parquet file that rlpost did not write
advantages noref.parquet o --emit kl | --emit kl needs old_log_probs and ref_log
advantages returns.parquet o | returns.parquet: has a column 'returns' already | --replace
inspect in.parquet --format jsn | --format jsn: 'jsn' is not one of | did you mean json
report in.parquet | in.parquet | OUT | tip: | rlpost report in.parquet report.html
verify | FILE... | rlpost verify FILE...
verify in.parquet --gamma 1 | --gamma | rlpost advantages
verify in.parquet --no-such-thing | tip: | rlpost verify --help
inspect in.parquet --row 3 --about groups | --about: has no effect on single responses
help frameworcs | 'frameworcs' | did you mean
inspct in.parquet | error: no command 'inspct' did you mean inspect?
zzz | error: no command 'zzz' tip: rlpost --help # lists the commands
config dif verl trl | dif | did you mean diff
config shwo | shwo | did you mean show
list losses gsppo | did you mean gspo
convert in.parquet | OUT | rlpost convert IN... OUT
advantages in.parquet out.jsonl | out.jsonl: OUT is a .parquet file or a directory
list estimator | no kind 'estimator' | did you mean estimators
list dumps slime | no dump 'slime' | slime-train
convert in.parquet o --from verll | --from verll | did you mean verl
export in.parquet | OUT | --to | jsonl
loss in.parquet --loss pp | error: --loss: no policy loss 'pp'
loss in.parquet --config tis.toml --loss tis | tis.toml, [loss]: loss_options.weight=3:1: must be
loss in.parquet --config preset.toml | preset.toml: no preset 'verll' did you mean verl
loss in.parquet --config preset3.toml | preset3.toml: preset is 3: a name is needed, see `rlpost
loss in.parquet --config estimator.toml | estimator.toml: estimator is [1]: must be a valid string
loss in.parquet --config eps.toml --numerics single=raw | eps.toml: numerics.norm_eps is -1:
loss in.parquet --config teacher.toml --teacher small=1 | teacher.toml: teachers.big is 'x':
loss in.parquet --config difficulty.toml | difficulty.toml: drop_difficulty is '1:-1': must be
loss in.parquet --config columns.toml | columns.toml: columns is 3: a table [columns] is needed
loss in.parquet --config numerics.toml | numerics.toml: numerics is 3: a table [numerics] is needed
loss in.parquet --config loss.toml | loss.toml: loss is 3: a table [loss] is needed
loss in.parquet --config loss1.toml | loss1.toml, [loss]: loss is [1]: must be a valid string
advantages - o | error: -: rollouts are not read from standard input: name files
inspect in.parquet - | error: -: rollouts are not read from standard input: name files
loss - | error: -: rollouts are not read from standard input: name files
"""
THREE = """
--difficulty-weight | no column for difficulty (--difficulty-weight)
--drop-truncated | no column for truncated (--drop-truncated)
--drop-single --estimator raw --map group=none | no column for group (--drop-single)
--map reward=rewrd | --map reward=rewrd: no column 'rewrd' did you mean reward?
advantages noreward.parquet o | noreward.parquet | reward | scores | candidates: reward_format, \
reward_correct tip: rlpost advantages noreward.parquet o --map reward=COLUMN
advantages nogroup.parquet o | nogroup.parquet | group | estimator grpo | candidates: prompt tip: \
rlpost advantages nogroup.parquet o --map group=prompt
advantages bad.parquet o | bad.parquet | row 5 | `reward` | nan | tip: | rlpost inspect bad.parquet
"""
GONE = "no.parquet: no such file or directory"
FOUR = f"""
advantages im.parquet o | im.parquet | did you mean in.parquet
convert im.parquet o | im.parquet | did you mean in.parquet
--config none.toml | none.toml: cannot read the recipe
advantages no.parquet o | {GONE}
inspect no.parquet | {GONE}
inspect no.parquet --row 1 | {GONE}
inspect no*.pq | no*.pq: the pattern matches no file
compare no.parquet --estimator grpo --estimator rloo | {GONE}
replay no.parquet --preset verl | {GONE}
loss no.parquet | {GONE}
convert no.parquet o | {GONE}
export no.parquet o.jsonl --to jsonl | {GONE}
verify no.parquet | {GONE}
"""


ADVICE = re.compile(
    r"  (candidates: .+|did you mean .+\?|tip: (#|(rlpost|git)( [^ #]+)*(  #|$)).*)"
)
"""Below an error: names, or what is typed as it stands, with its prose behind `#`."""


def cases():
    for code, table in ((2, TWO), (3, THREE), (4, FOUR)):
        for line in table.strip().splitlines():
            words, *texts = line.split(" | ")
            head = "advantages in.parquet o " if words.startswith("-") else ""
            yield pytest.param(head + words, code, texts, id=words)


@pytest.mark.parametrize(("words", "code", "texts"), [*cases()])
def test_an_error_is_a_sentence_and_what_to_do(words, code, texts, here):
    before = {*here.iterdir()}
    ran = run(*words.split())
    assert (ran.code, ran.out) == (code, ""), ran.err
    first, *below = ran.err.splitlines()
    assert first.startswith("error: ")
    assert all(ADVICE.fullmatch(line) for line in below), ran.err
    said = " ".join(ran.err.split())
    assert [text for text in texts if text not in said] == [], said
    library = r"(?i)input should|value error|invalid value|usage:|try '|[│╭]|command line|\x1b"
    assert not re.search(library, said)
    if "--config" not in words:
        for name in FIELDS["advantages"]:
            if "_" in name and name != "sample_weight" and name not in words:
                assert not re.search(rf"(?<![\w-]){name}\b", said.partition(" tip: ")[0]), said
    assert {*here.iterdir()} == before


def kinds():
    """One option of each type, with words that are no value of it."""
    free = {"estimator", "columns", "reward_components", "loss"}
    words = {"teachers": "large=x", "numerics": "norm_eps=x"}
    counts = {"reward_scale": 4, "overlong_penalty": 3, "group_length_penalty": 3}
    seen = {}
    for command, fields in FIELDS.items():
        for name, field in fields.items():
            kind = (command, str(field.annotation), str(field.metadata))
            if name not in free | {"estimator_name"} and "bool" not in kind[1]:
                wrong = [words.get(name, "x")] * counts.get(name, 1)
                seen.setdefault(kind, (command, name, wrong))
    return sorted(seen.values())


@pytest.mark.parametrize(("command", "name", "wrong"), kinds())
@pytest.mark.usefixtures("here")
def test_a_wrong_value_is_an_error_that_names_flag_or_variable(command, name, wrong, monkeypatch):
    words = [command, "in.parquet", *(["o"] if command == "advantages" else [])]
    flag = flag_of(name)
    for variable in ("", "RLPOST_" + flag[2:].upper().replace("-", "_")):
        if variable:
            monkeypatch.setenv(variable, " ".join(wrong))
        ran = run(*words, *([] if variable else [flag, *wrong]))
        said = " ".join(ran.err.split())
        assert (ran.code, ran.out) == (2, ""), said
        assert f"error: {variable or flag}" in said
        assert not ("_" in name and re.search(rf"\b{name}\b", said)), said


def test_flags_and_fields_are_each_others_inverse():
    for name in {*FIELDS["advantages"], *FIELDS["loss"]}:
        assert field_of(flag_of(name)) == name
    assert {*FLAGS} <= {*FIELDS["advantages"], *FIELDS["loss"], "loss_options"}


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("RLPOST_REWARD_CLIP=abc", "RLPOST_REWARD_CLIP=abc: "),
        ("RLPOST_CHUNK_TOKENS=0", "RLPOST_CHUNK_TOKENS=0: "),
        ("RLPOST_KL_TARGET=0.1", "RLPOST_KL_TARGET needs --kl-coef"),
        ("RLPOST_DEVICE=gpu", "RLPOST_DEVICE=gpu: auto, cpu, cuda, cuda:N or"),
        ("RLPOST_MAP=abc", "RLPOST_MAP=abc: write it NAME=VALUE"),
        ("RLPOST_NUMERICS=sngle=1", "RLPOST_NUMERICS=sngle: no such field"),
        ("RLPOST_PRESET=verll", "RLPOST_PRESET: no preset 'verll' did you mean verl"),
        ("RLPOST_ESTIMATOR=grop", "RLPOST_ESTIMATOR: no estimator 'grop'"),
        ("RLPOST_CONFIG=nosuch.toml", "RLPOST_CONFIG: nosuch.toml: cannot read"),
        ("RLPOST_PG_CLIP=-1", "RLPOST_PG_CLIP=-1: "),
        ("RLPOST_LOSS=pppo", "RLPOST_LOSS: no policy loss 'pppo'"),
        ("RLPOST_DROP_DIFFICULTY=1:-1", "RLPOST_DROP_DIFFICULTY=1:-1: must be LOW:HIGH"),
    ],
)
@pytest.mark.usefixtures("here")
def test_an_error_names_the_variable_that_set_the_value(setting, error, monkeypatch):
    name, _, value = setting.partition("=")
    monkeypatch.setenv(name, value)
    ran = run("loss", "in.parquet")
    assert ran.code == (4 if name == "RLPOST_CONFIG" else 2)
    assert " ".join(ran.err.split()).startswith(f"error: {error}")


@pytest.mark.usefixtures("here")
def test_an_error_of_a_flag_names_neither_the_file_nor_the_variable_of_another(monkeypatch):
    monkeypatch.setenv("RLPOST_REWARD_CLIP", "2")
    monkeypatch.setenv("RLPOST_ESTIMATOR", "gae")
    for words in ("--reward-clip -3", "--gamma 2", "--numerics nrm_eps=1", "--emit gae"):
        ran = run("advantages", "in.parquet", "o", "--config", "lam.toml", *words.split())
        assert ran.code == 2
        assert ran.err.startswith(f"error: {words.partition(' ')[0]}")
        assert "lam.toml" not in ran.err


def test_debug_keeps_the_traceback_wherever_it_stands():
    words = ("advantages", "missing.parquet", "out.parquet")
    for line in (("--debug", *words), (*words, "--debug")):
        with pytest.raises(ReadWriteError):
            run(*line)
