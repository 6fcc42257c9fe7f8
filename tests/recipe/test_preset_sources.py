"""Presets compute what the sources of their frameworks compute, whatever rlpost's defaults are.

Each case holds a preset against a loop on ragged responses. Three tests run over all of them: the
numbers are equal; they stay equal if every default that the preset does not set has another value;
and each field of the preset, given another value, changes a case.
"""

from collections import Counter
from functools import cache, partial
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np
import pytest
import reference_presets as source
import torch
from reference import Response
from strategies import to_table

import rlpost
from rlpost.errors import RlpostError
from rlpost.estimators import estimator_named
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.presets import file_of, merged, values_of, variants
from rlpost.recipe.recipe import Recipe, load_toml

SIZES = {"mixed": (3, 1, 2, 4, 3, 1, 5), "full": (3, 3, 3, 3)}


@cache
def rollout(
    kind: str = "mixed",
    *,
    far: bool = False,
    near: bool = False,
    apart: bool = False,
    failing: bool = False,
    equal_to_rounding: bool = False,
) -> tuple[Response, ...]:
    """Three steps of prompt groups: of one response, of equal rewards, with an empty response.

    With `far`, some tokens have log ratios beyond every clamp; with `near`, the rewards nearly
    agree, and values are 0. The rows of a group may be `apart`. With `failing`, some rows failed.
    With `equal_to_rounding`, rewards differ by units in the last place of a float32.
    """
    rng, rows = np.random.default_rng(7), []
    for group, size in enumerate(SIZES[kind]):
        equal = float(rng.integers(1, 5)) if group == 4 or (kind == "full" and group == 1) else None
        for i in range(size):
            n = int(rng.integers(2, 9))
            masks = (rng.random(n) < 0.7).astype(int)
            masks[0] = 1
            if (group, i) == (3, 2):
                masks[:] = 0
            old = -rng.integers(1, 150, n) / 64
            shift = {name: rng.integers(-40, 41, n) / 64 for name in ("ref", "infer", "current")}
            if far:
                shift["ref"][0] = (12, -12, 25, -25, 45)[len(rows) % 5]
                shift["infer"][0] = (-45, 12, 0.5, -12, 0.25)[len(rows) % 5]
                shift["current"][0] = (50, -11, 21, -21, 0)[len(rows) % 5]
            reward = equal or float(rng.integers(-40, 41)) / 2
            if equal_to_rounding:
                reward = 2.0**20 + (i % 3) / 2**3
            rows.append(
                Response(
                    group=f"g{group % 3}",
                    batch=group // 3 if kind == "mixed" else group // 2,
                    domain="ab"[group % 2],
                    reward=reward / 2**19 if near else reward,
                    mask=masks.tolist(),
                    old=old.tolist(),
                    ref=(old + shift["ref"]).tolist(),
                    infer=(old + shift["infer"]).tolist(),
                    current=(old + shift["current"]).tolist(),
                    values=(rng.integers(-64, 65, n) / 32 * (not near)).tolist(),
                    components={name: float(rng.integers(0, 5)) for name in ("c0", "c1")},
                    finish_reason=("stop", "length")[len(rows) % 3 == 0],
                    failure=("", "crash")[len(rows) % 4 == 1] if failing else None,
                    traj_id=f"t{group}-{i // 2}",
                    turn=i % 2,
                    state_id=f"s{len(rows) % 3}",
                    step_score=float(rng.integers(0, 4)),
                    episode_score=float(group + i // 2),
                )
            )
    if apart:
        rows = sorted(rows[::2] + rows[1::2], key=lambda r: r.batch)
    return tuple(rows)


class Case(NamedTuple):
    preset: str
    estimator: str
    loop: Any
    options: dict[str, Any]
    rows: dict[str, Any]


CASES = {}


def case(name, estimator, loop, rows=None, /, **options):
    title = f"{name} {estimator}"
    while title in CASES:
        title += "'"
    CASES[title] = Case(name, estimator, loop, options, rows or {})


FAR, NEAR, FULL = {"far": True}, {"near": True}, {"kind": "full"}
ROUNDED = {"kind": "full", "equal_to_rounding": True}

case("nemo-rl", "grpo", source.nemo_grpo)
for preset, one, loop in (
    ("nemo-rl", "grpo", source.nemo_grpo),
    ("openrlhf", "group_norm", partial(source.openrlhf, name="group_norm")),
    ("slime", "grpo", partial(source.slime, name="grpo")),
    ("prime-rl", "grpo", partial(source.prime_rl, name="grpo")),
    ("open-instruct", "standard", partial(source.open_instruct, name="standard")),
    ("roll", "grpo", partial(source.roll, name="grpo")),
):
    case(preset, one, loop, ROUNDED)
case("nemo-rl", "grpo", partial(source.trained_on_answers, loop=source.nemo_grpo),
     {"failing": True})  # fmt: skip
case("nemo-rl", "grpo", source.nemo_grpo, gamma=0.5)  # which it does not use
case("nemo-rl", "grpo", source.nemo_grpo, FAR, kl_coef=0.25)  # its KL is in the loss
case("nemo-rl", "grpo", partial(source.nemo_overlong, limit=6, buffer=3, factor=0.5),
     overlong_penalty=(6, 3, 0.5))  # fmt: skip
case("nemo-rl", "gdpo", partial(source.nemo_gdpo, weights={"c0": 1.0, "c1": 0.5}),
     reward_components=("c0", "c1"), component_weights=(1.0, 0.5))  # fmt: skip
case("nemo-rl", "gdpo", partial(source.nemo_gdpo, weights={"c0": 1.0, "c1": 1.0}), FAR,
     reward_components=("c0", "c1"), kl_coef=0.25)  # fmt: skip
for one in ("reinforce_plus_plus", "reinforce_pp"):
    case("nemo-rl", one, source.nemo_reinforce_plus_plus)
    case("nemo-rl", one, source.nemo_reinforce_plus_plus, gamma=0.5)
    case("nemo-rl", one, partial(source.nemo_reinforce_plus_plus, beta=0.25), FAR, kl_coef=0.25)
    case("nemo-rl", one, partial(source.nemo_reinforce_plus_plus, beta=0.25, estimator="k1"), FAR,
         kl_coef=0.25, kl_estimator="k1")  # fmt: skip
case("nemo-rl", "raw_reward", source.nemo_raw_reward)
case("nemo-rl", "raw_reward", source.nemo_raw_reward, gamma=0.5)
case("nemo-rl", "raw_reward", source.nemo_raw_reward, NEAR)
case("nemo-rl", "raw_reward", source.nemo_raw_reward, FAR, kl_coef=0.25)
case("nemo-rl", "gae", source.nemo_gae)
case("nemo-rl", "gae", source.nemo_gae, NEAR)
case("nemo-rl", "gae", partial(source.nemo_gae, beta=0.25), FAR, kl_coef=0.25)
case("nemo-rl", "opd", source.nemo_opd, FAR, teachers={"ref_log_probs": 1.0})
case("nemo-rl", "opd", source.nemo_opd, FAR, teachers={"ref_log_probs": 1.0}, kl_coef=0.25)
for preset, estimator in (
    ("nemo-rl", "grpo"),
    ("openrlhf", "dr_grpo"),
    ("slime", "grpo"),
    ("roll", "grpo"),
):
    rows = {**FULL, **FAR}
    case(preset, estimator, partial(source.clamped_weights, low=0.0, high=1e30), rows,
         is_weight="token", is_cap=1e30)  # fmt: skip
    case(preset, estimator, partial(source.masked_weights, low=0.5, high=2.0), rows,
         is_weight="token", is_mask=(0.5, 2.0))  # fmt: skip
    case(preset, estimator, partial(source.response_filter, low=0.9, high=1e3), rows,
         is_weight="token", is_filter=("geometric:ratio:0.9:1000",))  # fmt: skip

for one in ("gae", "reinforce", "flash_reinforce", "reinforce_baseline", "rloo", "dr_grpo",
            "group_norm"):  # fmt: skip
    rows = {} if one in ("gae", "reinforce", "flash_reinforce") else FULL
    case("openrlhf", one, partial(source.openrlhf, name=one), rows)
    case(
        "openrlhf",
        one,
        partial(source.openrlhf, name=one, beta=0.25),
        {**rows, **FAR},
        kl_coef=0.25,
    )
for one in ("gae", "reinforce"):
    case("openrlhf", one, partial(source.openrlhf, name=one, gamma=0.5), gamma=0.5)
    case("openrlhf", one, partial(source.openrlhf, name=one), NEAR)
case("openrlhf", "reinforce", partial(source.openrlhf, name="reinforce", beta=0.25, estimator="k3"),
     FAR, kl_coef=0.25, kl_estimator="k3")  # fmt: skip
case("openrlhf", "dr_grpo", partial(source.openrlhf_overlong, limit=6, buffer=3, factor=4.0), FULL,
     overlong_penalty=(6, 3, 4.0))  # fmt: skip
case("openrlhf", "dr_grpo", partial(source.openrlhf_truncated, coefficient=0.5), FULL,
     truncation_penalty=0.5)  # fmt: skip

for one in ("grpo", "gspo", "cispo"):
    case("slime", one, partial(source.slime, name=one))
    case("slime", one, partial(source.trained_on_answers, loop=partial(source.slime, name=one)),
         {"failing": True})  # fmt: skip
    case("slime", one, partial(source.slime, name=one), gamma=0.5)  # which it does not use
    case("slime", one, partial(source.slime, name=one), FAR, kl_coef=0.25)  # its KL is in the loss
    case("slime", one, partial(source.slime, name=one), NEAR)
for one, of in (("reinforce_plus_plus", "reinforce_plus_plus"), ("ppo", "ppo"), ("gae", "ppo"),
                ("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline"),
                ("reinforce_pp_baseline", "reinforce_plus_plus_baseline")):  # fmt: skip
    case("slime", one, partial(source.slime, name=of))
    case("slime", one, partial(source.slime, name=of, beta=0.25), FAR, kl_coef=0.25)
    case("slime", one, partial(source.slime, name=of, beta=0.25, estimator="k3"), FAR,
         kl_coef=0.25, kl_estimator="low_var_kl")  # fmt: skip
    case("slime", one, partial(source.slime, name=of), NEAR)
    case("slime", one, partial(source.slime, name=of, gamma=0.5), gamma=0.5)

for one in ("grpo", "max_rl", "rae"):
    case("prime-rl", one, partial(source.prime_rl, name=one), {"apart": True})
    case("prime-rl", one, partial(source.prime_rl, name=one), FAR, kl_coef=0.25)

for one, of in (("grpo", "centered"), ("centered", "centered"), ("standard", "standard"),
                ("grpo_standard", "standard")):  # fmt: skip
    case("open-instruct", one, partial(source.open_instruct, name=of))
    case("open-instruct", one, partial(source.open_instruct, name=of), gamma=0.5)
    case("open-instruct", one, partial(source.open_instruct, name=of), NEAR)
    case("open-instruct", one, partial(source.open_instruct, name=of), FAR, kl_coef=0.25)
case("open-instruct", "gae", partial(source.open_instruct_gae, gamma=0.9, lam=0.8),
     gamma=0.9, lam=0.8)  # fmt: skip
case("open-instruct", "grpo", source.open_instruct_kl, FAR, emit=("kl",))
case("open-instruct", "grpo", partial(source.open_instruct_kl, estimator="k1"), FAR, emit=("kl",),
     kl_estimator="k1")  # fmt: skip
case("open-instruct", "grpo", partial(source.open_instruct_weights, cap=2.0e4), FAR,
     is_weight="token", is_cap=2.0e4)  # fmt: skip

for one in ("reinforce", "grpo", "gae"):
    case("roll", one, partial(source.roll, name=one))
    case("roll", one, partial(source.roll, name=one, beta=0.25, clip=3.0), FAR, kl_coef=0.25,
         reward_clip=3.0)  # fmt: skip
case("roll", "agentic_reinforce", partial(source.roll, name="agentic_reinforce", beta=0.25),
     kl_coef=0.25, gamma=0.5)  # fmt: skip
case("roll", "reinforce", source.roll_whitened, whiten_advantages=True)
case("roll", "reinforce", source.roll_whitened, NEAR, whiten_advantages=True)
case("roll", "reinforce", partial(source.roll, name="reinforce", beta=0.25, estimator="k3"), FAR,
     kl_coef=0.25, kl_estimator="k3")  # fmt: skip
case("roll", "reinforce", partial(source.roll, name="batch"), norm_mean="batch", norm_std="batch")
case("roll", "reinforce", partial(source.roll, name="deviation"), FULL, norm_mean="none",
     norm_std="group")  # fmt: skip
case("roll", "gigpo", source.roll_gigpo, norm_mean="group", norm_std="none", gamma=0.5)

every_case = pytest.mark.parametrize("title", CASES)
every_preset = pytest.mark.parametrize("name", sorted({one.preset for one in CASES.values()}))


def fields(one: Case) -> dict[str, Any]:
    """The fields of the recipe: the preset's, and the case's options."""
    values = {"estimator": one.estimator, **one.options}
    return values_of(one.preset, {"emit": wanted_columns(one), **values})


@cache
def wanted(title: str) -> dict[str, list[list[float]]]:
    one = CASES[title]
    return one.loop(rollout(**one.rows))


def wanted_columns(one: Case) -> tuple[str, ...]:
    title = next(name for name, other in CASES.items() if other is one)
    return tuple(wanted(title))


def close(title: str, values: dict[str, Any]) -> bool:
    """Whether a recipe computes the numbers of a case's loop, at policy tokens.

    Weights that also exist on observation tokens (`is_observations`) are compared there, too.
    """
    one = CASES[title]
    rows = rollout(**one.rows)
    table = to_table(rows)
    names = [{"trajectory": "traj_id"}.get(name, name) for name in table.column_names]
    table, _ = rlpost.enrich(table.rename_columns(names), Recipe.of(values))
    policy = [bool(m) for r in rows for m in r.mask]
    for name, want in wanted(title).items():
        everywhere = name == "is_weight" and one.preset in ("slime", "roll")
        mask = [True] * len(policy) if everywhere else policy
        found = torch.tensor(list(chain(*table[name].to_pylist())), dtype=torch.float64)[mask]
        expected = torch.tensor(list(chain(*want)), dtype=torch.float64)[mask]
        if not torch.allclose(found, expected, rtol=2e-5, atol=1e-5):
            return False
    return True


@every_case
def test_a_preset_computes_what_the_source_computes(title):
    assert close(title, fields(CASES[title]))


OTHER_NUMBERS = (0.3, 0.01, 5.0)
OTHERS = {
    "kl_estimator": ["k2"], "gamma": [0.7], "lam": [0.6], "reward_clip": [2.0],
    "batch_eps": [0.3], "order": ["row"], "episodes": ["trajectory"], "states": ["group"],
    "segment_reward": ["sum"],
}  # fmt: skip
TOP = ("kl_estimator", "gamma", "lam", "reward_clip")


def alternatives(field: str, value: Any = None) -> list[Any]:
    """Other values of a field of the recipe or of its numerics."""
    if field in OTHERS:
        return [x for x in OTHERS[field] if x != value]
    kind = (Numerics if field in Numerics.model_fields else Recipe).model_fields[field].annotation
    if kind is not None and get_origin(kind) is Literal:
        return [x for x in get_args(kind) if x != value]
    if field in ("norm_mean", "norm_std"):
        return [x for x in ("none", "group", "batch", "others") if x != value]
    if isinstance(value, bool):
        return [not value]
    return [x for x in OTHER_NUMBERS if x != value]


def moved(values: dict[str, Any]) -> dict[str, Any]:
    """The fields, and another value for each default of numerics and KL that they leave."""
    numerics = {
        name: alternatives(name, one.default)[0] for name, one in Numerics.model_fields.items()
    }
    if not estimator_named(values["estimator"]).outcome:
        del numerics["outcome"]  # an error
    return merged({"numerics": numerics}, values)


@every_case
def test_a_preset_does_not_change_with_the_defaults(title):
    assert close(title, moved(fields(CASES[title])))


CHANGED = Counter()
"""How often each case was the first that another value of a field changed."""


def changes(name: str, values_with, estimators: tuple[str, ...]) -> bool:
    """Whether a change of the recipe's fields changes a case of these estimators.

    The cases that changed most often are tried first.
    """
    for title, one in sorted(CASES.items(), key=lambda item: -CHANGED[item[0]]):
        if one.preset == name and (not estimators or one.estimator in estimators):
            try:
                if not close(title, values_with(fields(one))):
                    CHANGED[title] += 1
                    return True
            except RlpostError:
                continue
    return False


def settings(name: str) -> list[tuple[tuple[str, ...], str, str]]:
    """Each field of a preset's recipe: the estimators that it is for, its table and its name."""
    table = load_toml(file_of(name))
    found = [((), "numerics", field) for field in table.get("numerics", {})]
    found += [((), "", field) for field in table if field in TOP]
    for estimator, own in table.get("estimators", {}).items():
        found += [((estimator,), "numerics", field) for field in own.get("numerics", {})]
        found += [((estimator,), "options", field) for field in own.get("options", {})]
        found += [
            ((estimator,), "", field)
            for field in own
            if field not in ("numerics", "options", "estimator")
        ]
    return found


@pytest.mark.nightly
@every_preset
def test_each_field_of_a_preset_is_caught_by_a_case(name):
    unheld = []
    for estimators, table, field in settings(name):

        def values_with(values, other, table=table, field=field):
            return merged(values, {table: {field: other}} if table else {field: other})

        sample = fields(next(
            one for one in CASES.values()
            if one.preset == name and (not estimators or one.estimator in estimators)
        ))  # fmt: skip
        value = (sample[table] if table else sample).get(field)
        others = alternatives(field, value)
        if not any(changes(name, partial(values_with, other=x), estimators) for x in others):
            unheld.append((estimators, field))
    assert unheld == []


@every_preset
def test_each_estimator_of_a_preset_has_a_case(name):
    assert set(variants(name)) <= {one.estimator for one in CASES.values() if one.preset == name}
