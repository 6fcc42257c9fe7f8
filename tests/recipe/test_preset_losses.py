"""The losses of presets are those of their frameworks' sources, whatever rlpost's defaults are.

Three tests, as in test_preset_sources: the loss and each token's loss equal a loop; they stay equal
if every option that the preset does not set has another default; and each option of the preset,
with another value, changes a case.
"""

import math
from functools import partial
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
import reference_losses as slow
import torch
from test_preset_sources import rollout

from rlpost.errors import RlpostError
from rlpost.functional import policy_loss
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.presets import file_of, loss_values_of, loss_variants
from rlpost.recipe.recipe import load_toml

INF = math.inf
PPO = {"low": 0.2, "high": 0.2, "clamp": INF}
BOTH = {"low": 0.8, "high": 1.2, "clamp": INF}
TOKENS, ROWS, VALID = (
    ("token-mean", False),
    ("seq-mean-token-mean", True),
    ("seq-mean-token-mean", False),
)


class Case(NamedTuple):
    preset: str
    loss: str
    loop: Any
    """The loss of each policy token of a response."""
    how: tuple[str, bool]
    """The aggregation, and whether it counts all responses or those with a policy token."""
    kl: dict[str, Any] | None = None
    """Arguments of the loop of the KL loss, with its estimator; None: no KL loss."""
    options: dict[str, Any] | None = None
    infer: bool = False
    """The ratio divides by the rollout engine."""


NEMO_KL = {"log_clamp": 20.0, "clamps_all": True, "by_ratio": True, "to_itself": True,
           "of_product": True}  # fmt: skip
CASES = [
    Case("nemo-rl", "ppo", partial(slow.ppo, **PPO), TOKENS),
    Case("nemo-rl", "ppo", partial(slow.ppo, **PPO), TOKENS, {"estimator": "k3", **NEMO_KL}),
    Case("nemo-rl", "ppo", partial(slow.ppo, **PPO), TOKENS, {"estimator": "k1", **NEMO_KL},
         {"kl_loss_estimator": "k1"}),
    Case("nemo-rl", "ppo", partial(slow.ppo, **PPO), TOKENS,  # on-policy approximation
         {"estimator": "k3", **NEMO_KL, "to_itself": False},
         {"kl_loss_ratio_policy": "infer", "behaviour": "infer"}, infer=True),
    Case("nemo-rl", "gspo", partial(slow.gspo, **PPO), ROWS),
    Case("nemo-rl", "gspo", partial(slow.gspo, **PPO), ROWS, {"estimator": "k3", **NEMO_KL}),
    Case("nemo-rl", "cispo", partial(slow.cispo, **BOTH), TOKENS),
    Case("nemo-rl", "pg", slow.pg, TOKENS),
    Case("openrlhf", "ppo", partial(slow.ppo, **{**PPO, "clamp": 20.0}), TOKENS),
    Case("openrlhf", "ppo", partial(slow.ppo, **{**PPO, "clamp": 20.0}), TOKENS,
         {"estimator": "k1", "log_clamp": INF, "clamps_all": True}),
    Case("openrlhf", "ppo", partial(slow.ppo, **{**PPO, "clamp": 20.0}), TOKENS,
         {"estimator": "k2", "log_clamp": INF, "clamps_all": True}, {"kl_loss_estimator": "k2"}),
    Case("openrlhf", "ppo", partial(slow.ppo, **{**PPO, "clamp": 20.0}), VALID,
         options={"aggregation": "seq-mean-token-mean"}),
    Case("openrlhf", "gspo", partial(slow.gspo, **PPO), VALID),
    Case("slime", "ppo", partial(slow.ppo, **PPO), ROWS),
    Case("slime", "ppo", partial(slow.ppo, **PPO), ROWS, {"estimator": "k1", "log_clamp": INF}),
    Case("slime", "ppo", partial(slow.ppo, **PPO), ROWS, {"estimator": "k2", "log_clamp": INF},
         {"kl_loss_estimator": "k2"}),
    Case("slime", "ppo", partial(slow.ppo, **PPO), ROWS,  # use_unbiased_kl
         {"estimator": "k3", "log_clamp": INF, "by_ratio": True, "of_product": True},
         {"kl_loss_estimator": "low_var_kl", "kl_loss_ratio": True}),
    Case("slime", "gspo", partial(slow.gspo, **PPO), ROWS),
    Case("slime", "cispo", partial(slow.cispo, **BOTH), ROWS),
    Case("slime", "reinforce", slow.pg, ROWS),
    Case("prime-rl", "ipo", partial(slow.ipo, bound=0.3, square=0.0), TOKENS, infer=True),
    Case("prime-rl", "ref_kl", partial(slow.ref_kl, low=0.2, square=1e-3), TOKENS, infer=True),
    *(
        Case("open-instruct", name, partial(slow.ppo, low=0.2, high=0.272, clamp=INF), TOKENS)
        for name in ("ppo", "dapo")
    ),
    Case("open-instruct", "dapo", partial(slow.ppo, low=0.2, high=0.272, clamp=INF), TOKENS,
         {"estimator": "k3", "log_clamp": 40.0, "clamp": INF}),
    Case("open-instruct", "dapo", partial(slow.ppo, low=0.2, high=0.272, clamp=INF), TOKENS,
         {"estimator": "k1", "log_clamp": 40.0}, {"kl_loss_estimator": "k1"}),
    Case("open-instruct", "cispo", partial(slow.cispo, low=0.0, high=1.272, clamp=INF), TOKENS),
    Case("open-instruct", "dppo", partial(slow.dppo, low=0.1, high=0.1, square=0.0), TOKENS,
         infer=True),
    Case("roll", "ppo", partial(slow.ppo, **PPO), VALID),
    Case("roll", "ppo", partial(slow.ppo, **PPO), VALID, {"estimator": "k3", "log_clamp": INF}),
    Case("roll", "gspo", partial(slow.gspo, **PPO), VALID),
    Case("roll", "cispo", partial(slow.cispo, low=0.9, high=1.1, clamp=INF), VALID),
]  # fmt: skip
every_case = pytest.mark.parametrize("one", CASES, ids=lambda one: f"{one.preset} {one.loss}")
every_preset = pytest.mark.parametrize("name", sorted({one.preset for one in CASES}))
ROLLOUT = rollout(far=True)


def loop_rows(*, infer: bool) -> list[slow.Row]:
    """The policy tokens of the responses that have some, with advantages of both signs and 0."""
    rows = []
    for i, r in enumerate(ROLLOUT):
        own = [t for t, m in enumerate(r.mask) if m]
        new, old, ref = (
            [xs[t] for t in own] for xs in (r.current, r.infer if infer else r.old, r.ref)
        )
        advantages = [ADVANTAGES[(i + t) % len(ADVANTAGES)] for t in own]
        rows.append(slow.Row(new, new, old, ref, advantages, r.reward))
    return rows


ADVANTAGES = (1.0, -0.5, 0.0, 2.0, -1.5)
COEFFICIENT = 0.25


def wanted(one: Case) -> tuple[list[float], float]:
    """The loss of each policy token, and the loss."""
    rows = loop_rows(infer=one.infer)
    tokens = [[found[0] for found in one.loop(row)] for row in rows]
    how, every_row = one.how
    sizes = [len(r.mask) for r in ROLLOUT]
    total = slow.aggregate(tokens, sizes, how, every_row=every_row)
    if one.kl is not None:
        penalties = [slow.kl(row, **one.kl) for row in rows]
        total += COEFFICIENT * slow.aggregate(penalties, sizes, how, every_row=every_row)
    return [x for xs in tokens for x in xs], total


def values_of(one: Case) -> dict[str, Any]:
    coefficient = {} if one.kl is None else {"kl_loss_coef": COEFFICIENT}
    return loss_values_of(one.preset, {"loss": one.loss, **(one.options or {}), **coefficient})


def close(one: Case, values: dict[str, Any]) -> bool:
    """Whether these options give the loss of the case's loop."""

    def joined(lists) -> torch.Tensor:
        return torch.tensor([x for xs in lists for x in xs], dtype=torch.float64)

    sizes = torch.tensor([0, *(len(r.mask) for r in ROLLOUT)])
    advantages = [
        [ADVANTAGES[(i + t) % len(ADVANTAGES)] for t in range(len(r.mask))]
        for i, r in enumerate(ROLLOUT)
    ]
    mask = joined(r.mask for r in ROLLOUT) > 0
    found = policy_loss(
        joined(r.current for r in ROLLOUT),
        joined(r.old for r in ROLLOUT),
        joined(advantages),
        sizes.cumsum(0),
        mask,
        loss=LossOptions.of(values),
        infer_log_probs=joined(r.infer for r in ROLLOUT),
        ref_log_probs=joined(r.ref for r in ROLLOUT),
    )
    tokens, total = wanted(one)
    expected = torch.tensor(tokens, dtype=torch.float64)
    same = torch.allclose(found.tokens[mask], expected, rtol=1e-9, atol=1e-12)
    return same and math.isclose(found.loss, total, rel_tol=1e-9)


@every_case
def test_a_loss_of_a_preset_is_that_of_the_source(one):
    assert close(one, values_of(one))


NUMBERS = {
    "prob_mask": (0.05, 0.9),
    "square_coef": (0.5,),
    "cov": ("-1:9", "1:9"),
    "share": (0.5,),
    "pg_clip": ("0.05:3", "3:0.05"),
    "kl_loss_log_ratio_clamp": ("k3:0.05", 0.05),
    "kl_loss_clamp": ("k3:0.05", "all:0.05", "product:0.05", "k3-product:0.05"),
}


def alternatives(field: str, value: Any = None) -> list[Any]:
    """Other values of an option."""
    if field not in LossOptions.model_fields:
        words = {"bounds": ["ratio", "offset"], "mask_clipped": [True, False]}
        return [x for x in words.get(field, NUMBERS.get(field, (0.05, 3.0))) if x != value]
    kind = LossOptions.model_fields[field].annotation
    kinds = [one for one in (kind, *get_args(kind)) if get_origin(one) is Literal]
    if kinds:
        return [x for x in get_args(kinds[0]) if x != value]
    if kind is bool or bool in get_args(kind):
        return [not value]
    if field == "dual_clip":
        return [1.5]
    return [x for x in NUMBERS.get(field, (0.05, 3.0)) if x != value]


LEFT = {"kl_loss_coef", "agg_length", "agg_norm", "loss", "kl_loss_aggregation", "loss_options"}
"""A run's own choices: the coefficient, options of its own loss, and what seq-mean-token-sum-norm
divides by; and the aggregation of the KL loss, which is that of the loss."""


@pytest.mark.nightly
@every_case
def test_a_loss_of_a_preset_does_not_change_with_the_defaults(one):
    values = values_of(one)
    for field, info in LossOptions.model_fields.items():
        if field not in {*values} | LEFT:
            assert close(one, {**values, field: alternatives(field, info.default)[0]}), field


@pytest.mark.nightly
@every_preset
def test_each_option_of_a_preset_is_caught_by_a_case(name):
    table = load_toml(file_of(name))
    fields = [((), field) for field in table["loss"]]
    fields += [
        ((loss,), field)
        for loss, own in table.get("losses", {}).items()
        for field in {**own, **own.get("loss_options", {})}
    ]
    unheld = []
    for losses, field in fields:
        if field in ("loss", "loss_options"):
            continue
        cases = [one for one in CASES if one.preset == name and one.loss in (losses or (one.loss,))]
        if not any(changes(one, field) for one in cases):
            unheld.append((losses, field))
    assert unheld == []


def changes(one: Case, field: str) -> bool:
    """Whether some other value of an option changes the case."""
    values = values_of(one)
    own = values.get("loss_options", {})
    for other in alternatives(field, own.get(field, values.get(field))):
        changed = {"loss_options": {**own, field: other}} if field in own else {field: other}
        try:
            if not close(one, {**values, **changed}):
                return True
        except RlpostError:
            continue
    return False


@every_preset
def test_each_loss_of_a_preset_has_a_case(name):
    assert set(loss_variants(name)) <= {one.loss for one in CASES if one.preset == name}
