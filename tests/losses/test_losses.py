"""Policy losses: against plain loops, gradients against difference quotients, and laws."""

import gc
import math
import weakref
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import reference_losses as slow
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loss_words import nested
from strategies import MASKS

from rlpost.errors import UsageError
from rlpost.losses import HIGH, LOSSES, NONE, Tokens, kl_loss, loss_named
from rlpost.losses.config import LossConfig
from rlpost.losses.kl import KlLoss
from rlpost.recipe.loss import ABOUT_AGGREGATIONS, LossOptions
from rlpost.recipe.presets import loss_preset

EXACT = {"rtol": 1e-10, "atol": 1e-12}
KL_ESTIMATORS = ("k1", "abs", "k2", "k3", "k4")
INF = math.inf

# For each case: options of rlpost, the loop, and its own parameters.
CASES = {
    "ppo": ({}, slow.ppo, {}),
    "ppo low and high": (
        {"pg_clip": "0.1:0.28"}, slow.ppo, {"low": 0.1, "high": 0.28},
    ),
    "ppo one number": ({"pg_clip": 0.05}, slow.ppo, {"low": 0.05, "high": 0.05}),
    "ppo dual": ({"dual_clip": 1.5}, slow.ppo, {"dual": 1.5}),
    "ppo dual twice": (
        {"dual_clip": "twice", "pg_clip": "0.1:0.3"},
        slow.ppo,
        {"low": 0.1, "high": 0.3, "dual": 1.2},
    ),
    "ppo unclamped": ({"ratio_clamp": "never"}, slow.ppo, {"clamp": INF}),
    "ppo clamped hard": ({"ratio_clamp": 0.3}, slow.ppo, {"clamp": 0.3}),
    "ppo no upper bound": ({"pg_clip": "0.2:"}, slow.ppo, {"high": INF}),
    "pg": ({"loss": "pg"}, slow.pg, {}),
    "gpg": ({"loss": "gpg"}, slow.pg, {}),
    "gspo": ({"loss": "gspo"}, slow.gspo, {}),
    "gspo wide, dual": (
        {"loss": "gspo", "pg_clip": 0.1, "dual_clip": 1.15},
        slow.gspo,
        {"low": 0.1, "high": 0.1, "dual": 1.15},
    ),
    "gspo capped": (
        {"loss": "gspo", "ratio_clamp": "never", "ratio_cap": 0.05, "pg_clip": 0.5},
        slow.gspo,
        {"low": 0.5, "high": 0.5, "clamp": INF, "cap": 0.05},
    ),
    "cispo": ({"loss": "cispo"}, slow.cispo, {}),
    "cispo both sides": (
        {"loss": "cispo", "pg_clip": 0.1}, slow.cispo, {"low": 0.9, "high": 1.1},
    ),
    "cispo ratios": (
        {"loss": "cispo", "bounds": "ratio", "pg_clip": "0.7:1.2"},
        slow.cispo,
        {"low": 0.7, "high": 1.2},
    ),
    "cispo masked": (
        {"loss": "cispo", "pg_clip": 0.2, "mask_clipped": True},
        slow.cispo,
        {"low": 0.8, "high": 1.2, "masked": True},
    ),
    "tis": ({"loss": "tis"}, slow.tis, {}),
    "tis bounds": (
        {"loss": "tis", "weight": "0.8:1.3"}, slow.tis, {"low": 0.8, "high": 1.3},
    ),
    "topr": ({"loss": "topr"}, slow.topr, {}),
    "topr weights": (
        {"loss": "topr", "positive": 0.5, "negative": 2.0, "weight": "0.9:1"},
        slow.topr,
        {"low": 0.9, "positive": 0.5, "negative": 2.0},
    ),
    "kimi15": ({"loss": "kimi15", "tau": 0.7}, slow.kimi15, {"tau": 0.7}),
    "geo_mean": ({"loss": "geo_mean"}, slow.geo_mean, {}),
    "geo_mean narrow": (
        {"loss": "geo_mean", "pg_clip": "0.05:0.1"},
        slow.geo_mean,
        {"low": 0.05, "high": 0.1},
    ),
    "sapo": ({"loss": "sapo"}, slow.sapo, {}),
    "sapo steep": (
        {"loss": "sapo", "tau_pos": 3.0, "tau_neg": 5.0},
        slow.sapo,
        {"positive": 3.0, "negative": 5.0},
    ),
    "dppo": ({"loss": "dppo"}, slow.dppo, {}),
    "dppo bounds": (
        {"loss": "dppo", "prob_mask": "0.02:0.05", "square_coef": 0.5},
        slow.dppo,
        {"low": 0.02, "high": 0.05, "square": 0.5},
    ),
    "ipo": ({"loss": "ipo", "prob_mask": 0.03}, slow.ipo, {"bound": 0.03}),
    "ref_kl": ({"loss": "ref_kl", "prob_mask": 0.03}, slow.ref_kl, {"low": 0.03}),
    "dppo_tv": ({"loss": "dppo_tv"}, slow.dppo_tv, {}),
    "dppo_tv bounds": (
        {"loss": "dppo_tv", "prob_mask": "0.02:0.05", "weight_cap": 1.05},
        slow.dppo_tv,
        {"low": 0.02, "high": 0.05, "most": 1.05},
    ),
    "dppo_kl": ({"loss": "dppo_kl"}, slow.dppo_kl, {}),
    "dppo_kl bounds": (
        {"loss": "dppo_kl", "kl_mask": "0.002:0.01", "weight_cap": 1.05},
        slow.dppo_kl,
        {"low": 0.002, "high": 0.01, "most": 1.05},
    ),
    "dro": ({"loss": "dro", "beta": 0.7}, slow.kimi15, {"tau": 0.7}),
    "mask_pg": ({"loss": "mask_pg"}, slow.mask_pg, {}),
    "mask_pg narrow": (
        {"loss": "mask_pg", "pg_clip": "0.1:0.05", "dual_clip": 1.1},
        slow.mask_pg,
        {"low": 0.1, "high": 0.05, "most": 1.1},
    ),
    "rollout_is": ({"loss": "rollout_is"}, slow.rollout_is, {}),
    "rollout_is narrow": (
        {"loss": "rollout_is", "pg_clip": "0.1:0.05"},
        slow.rollout_is,
        {"low": 0.1, "high": 0.05},
    ),
    "real": ({"loss": "real"}, slow.real, {}),
    "real hard": ({"loss": "real", "tau": 0.1}, slow.real, {"tau": 0.1}),
    "fipo": ({"loss": "fipo"}, slow.fipo, {}),
    "fipo near": (
        {
            "loss": "fipo", "dual_clip": 1.5, "half_life": 2, "influence": "0.7:1.5",
            "safety": 1.1,
        },
        slow.fipo,
        {"dual": 1.5, "half": 2, "least": 0.3, "most": 0.5, "safety": 1.1},
    ),
    "oreal": ({"loss": "oreal"}, slow.oreal, {}),
    "oreal factors": (
        {
            "loss": "oreal", "dual_clip": 1.5, "positive": 0.5, "sft": 0.3,
            "negative": 2.0,
        },
        slow.oreal,
        {"dual": 1.5, "positive": 0.5, "sft": 0.3, "negative": 2.0},
    ),
    "kimi_k2": (
        {"loss": "kimi_k2", "tau": 0.7, "weight": "0.8:1.3"},
        slow.kimi_k2,
        {"tau": 0.7, "low": 0.8, "high": 1.3},
    ),
    "vespo": ({"loss": "vespo"}, slow.vespo, {}),
    "vespo shape": (
        {"loss": "vespo", "k_pos": 1.0, "lambda_neg": 0.5},
        slow.vespo,
        {"k": (1.0, 3.0), "lam": (3.0, 0.5)},
    ),
    "kl_cov": ({"loss": "kl_cov"}, slow.kl_cov, {}),
    "kl_cov third": (
        {"loss": "kl_cov", "share": 0.34, "coef": 0.3},
        slow.kl_cov,
        {"share": 0.34, "coef": 0.3},
    ),
    "clip_cov all": (
        {"loss": "clip_cov", "share": 1.0, "cov": "0.1:2"},
        slow.clip_cov_all,
        {"floor": 0.1, "ceiling": 2.0},
    ),
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES)
each_by_response = pytest.mark.parametrize("case", [x for x in CASES if not x.startswith("real")])


@st.composite
def batches(draw, *, width=None):
    """Tokens of some responses: empty ones, observations, equal and zero advantages among them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 9]), min_size=1, max_size=6))
    kind = draw(st.sampled_from(["ones", *MASKS]))
    width = draw(st.sampled_from([0.02, 0.3, 2.0])) if width is None else width
    total, constant = sum(sizes), draw(st.booleans())
    old = -rng.exponential(0.8, total) - 0.05
    advantages = rng.normal(0, 1, total) * (rng.random(total) < 0.9)
    if constant:
        advantages = np.repeat(rng.normal(0, 1, len(sizes)), sizes)
    masks = [np.asarray(MASKS[kind](size, rng), dtype=bool) for size in sizes]
    return Tokens(
        new=torch.from_numpy(old + rng.normal(0, width, total)),
        old=torch.from_numpy(old),
        advantages=torch.from_numpy(advantages),
        mask=torch.from_numpy(np.concatenate(masks)),
        offsets=torch.tensor([0, *np.cumsum(sizes)]),
        infer=torch.from_numpy(old + rng.normal(0, 0.1, total)),
        ref=torch.from_numpy(old + rng.normal(0, width, total)),
        rewards=torch.from_numpy(rng.choice([-1.0, 0.0, 1.0], len(sizes))),
        group=torch.from_numpy(rng.integers(0, 2, len(sizes))),
    )


def rows_of(tokens, new=None):
    """The same for the loops: policy tokens by response. `new` moves, `frozen` does not."""
    moved = tokens.new if new is None else new
    found = []
    for row, (start, stop) in enumerate(pairwise(tokens.offsets.tolist())):
        own = tokens.mask[start:stop]
        names = (moved, tokens.new, tokens.old, tokens.ref, tokens.advantages)
        places = own.nonzero().flatten().tolist()
        parts = [column[start:stop][own].tolist() for column in names]
        group = 0 if tokens.group is None else int(tokens.group[row])
        found.append(slow.Row(*parts, float(tokens.rewards[row]), group, places))
    return found


def expected(loop, tokens, own, new=None):
    """Loss, clip state and ratio of each policy token, in order."""
    rows = rows_of(tokens, new)
    by_row = loop(rows, **own) if loop in slow.OF_BATCHES else [loop(x, **own) for x in rows]
    found = [one for row in by_row for one in row]
    return torch.tensor(found, dtype=torch.float64).reshape(-1, 3)


def unclear(case, tokens):
    """Whether rounding decides which tokens are selected: some covariances are nearly equal."""
    options, loop, own = CASES[case]
    rows = rows_of(tokens)
    if loop not in slow.OF_BATCHES or not any(map(len, rows)):
        return False
    ranks = sorted(x for row in slow.covariances(rows) for x in row)
    last = len(ranks) - slow.count_of(own.get("share", 2e-4), rows)
    bounds = [ranks[last - 1]] if loop is slow.kl_cov and last else []
    bounds += map(float, options["cov"].split(":")) if "cov" in options else []
    others = ranks if loop is not slow.kl_cov else ranks[last : last + 1]
    return any(abs(one - bound) < 1e-9 for one in others for bound in bounds)


def computed(tokens, **options):
    chosen = LossOptions.of(nested(options))
    return loss_named(chosen.loss)(tokens, chosen)


def connected(tokens, **options):
    """The same tokens, with what connects the responses of a batch if the loss needs it."""
    chosen = LossOptions.of(nested(options))
    selection = loss_named(chosen.loss).selection(chosen)
    return tokens if selection is None else selection.as_one_batch(tokens)


def gradient(tokens, **options):
    """Of the sum of losses, at each token."""
    new = tokens.new.clone().requires_grad_()
    computed(replace(tokens, new=new), **options).values.sum().backward()
    return new.grad


@every_case
@settings(max_examples=12)
@given(tokens=batches())
def test_each_loss_equals_the_loop_of_its_paper(case, tokens):
    assume(not unclear(case, tokens))
    options, loop, own = CASES[case]
    found, mask = computed(tokens, **options), tokens.mask
    want = expected(loop, tokens, own)
    torch.testing.assert_close(found.values[mask], want[:, 0], **EXACT)
    assert found.clip[mask].tolist() == want[:, 1].tolist()
    torch.testing.assert_close(found.ratio[mask], want[:, 2], **EXACT)
    assert not found.values[~mask].any()
    assert not found.clip[~mask].any()
    assert not found.gradient[~mask].any()
    assert found.clip.dtype == torch.uint8


@settings(max_examples=6)
@given(tokens=batches())
def test_defaults_that_no_other_case_has_are_those_of_the_loops(tokens):
    loops = {"ipo": slow.ipo, "ref_kl": slow.ref_kl, "kimi15": slow.kimi15, "dro": slow.kimi15}
    for name, loop in (loops | {"kimi_k2": slow.kimi_k2}).items():
        values = computed(tokens, loss=name).values[tokens.mask]
        torch.testing.assert_close(values, expected(loop, tokens, {})[:, 0], **EXACT)


def edges(tokens):
    """Where a formula has a kink near a token, a difference quotient means nothing."""
    log_ratio = (tokens.new - tokens.old)[tokens.mask]
    moved = (tokens.new.exp() - tokens.old.exp())[tokens.mask]
    kinks = [0.05, 0.1, 0.2, 0.28, 0.3, 0.5]
    kinks += [math.log(x) for x in (0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2, 1.28, 1.3, 1.5)]
    kinks = torch.tensor([*kinks, 3e-4, 4e-4, 0.4, *(-x for x in (0.05, 0.4, 0.3, 3e-4))])
    near = (log_ratio[:, None] - kinks).abs().min() < 1e-4 if len(log_ratio) else False
    means = torch.tensor([slow.mean([a - b for a, b in zip(r.new, r.old, strict=True)])
                          for r in rows_of(tokens)])  # fmt: skip
    near |= bool((means[:, None] - kinks).abs().min() < 1e-4)
    bounds = torch.tensor([0.02, 0.03, 0.05, 0.1, 0.2])
    return near or bool(((moved.abs()[:, None] - bounds).abs() < 1e-4).any())


@every_case
@settings(max_examples=15)
@given(tokens=batches(width=0.3))
def test_gradients_are_difference_quotients(case, tokens):
    options, loop, own = CASES[case]
    assume(not edges(tokens) and not unclear(case, tokens))
    step, found = 1e-6, gradient(tokens, **options)
    for at in tokens.mask.nonzero().flatten().tolist()[:6]:
        nudge = torch.zeros_like(tokens.new)
        nudge[at] = step
        above, below = (
            expected(loop, tokens, own, tokens.new + sign * nudge)[:, 0].sum() for sign in (1, -1)
        )
        quotient = float(above - below) / (2 * step)
        assert math.isclose(found[at], quotient, rel_tol=1e-5, abs_tol=1e-7), (case, at)
    assert not found[~tokens.mask].any()


@every_case
@settings(max_examples=6)
@given(tokens=batches())
@np.errstate(all="ignore")
def test_the_gradient_of_a_loss_is_that_of_autograd(case, tokens):
    """In torch and in numpy, with importance weights, and 0 at the same tokens."""
    assume(not unclear(case, tokens))
    options = CASES[case][0]
    weighted = replace(tokens, weights=torch.exp(tokens.infer - tokens.old))
    for one in (tokens, weighted):
        want = gradient(one, **options)
        columns = {name: x.numpy() for name, x in vars(one).items() if torch.is_tensor(x)}
        for found in (computed(one, **options), computed(Tokens(**columns), **options)):
            mine = torch.as_tensor(found.gradient)
            torch.testing.assert_close(mine, want, **EXACT)
            assert torch.equal(mine == 0, want == 0)


@each_by_response
@settings(max_examples=4)
@given(tokens=batches())
def test_chunks_of_whole_responses_give_the_same_bits(case, tokens):
    options = CASES[case][0]
    whole = computed(tokens, **options)
    batch = connected(tokens, **options)
    for row, (start, stop) in enumerate(pairwise(tokens.offsets.tolist())):
        part = batch.rows(row, row + 1)
        for all_of_it, piece in zip(whole, computed(part, **options), strict=True):
            assert torch.equal(all_of_it[start:stop], piece)


@every_case
@settings(max_examples=4)
@given(tokens=batches(), junk=st.sampled_from([math.nan, INF, -INF, 1e300]))
def test_values_at_observations_are_never_read(case, tokens, junk):
    options = CASES[case][0]
    names = ("new", "old", "advantages", "infer", "ref")
    spoilt = {name: getattr(tokens, name).where(tokens.mask, torch.tensor(junk)) for name in names}
    for clean, other in zip(
        computed(tokens, **options), computed(replace(tokens, **spoilt), **options), strict=True
    ):
        assert torch.equal(clean, other)
    assert torch.isfinite(gradient(replace(tokens, **spoilt), **options)).all()


# --- laws ----------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(tokens=batches())
def test_at_a_ratio_of_one_all_gradients_are_the_plain_policy_gradient(tokens):
    rewards = torch.ones_like(tokens.rewards)
    plain = replace(tokens, new=tokens.old, rewards=rewards)
    for loss in set(LOSSES) - {"geo_mean", "ref_kl", "clip_cov", "real", "oreal"}:
        torch.testing.assert_close(gradient(plain, loss=loss), -tokens.masked_advantages, **EXACT)


@settings(max_examples=10)
@given(tokens=batches())
def test_behaviour_infer_divides_by_the_engine(tokens):
    for loss in ("ppo", "dppo", "cispo"):
        found = computed(tokens, loss=loss, behaviour="infer")
        other = computed(replace(tokens, old=tokens.infer), loss=loss)
        assert all(map(torch.equal, found, other))
    with pytest.raises(AssertionError, match="without log-probs of the rollout engine"):
        computed(replace(tokens, infer=None), behaviour="infer")


def test_without_rewards_topr_uses_the_sign_of_the_advantage():
    one = torch.ones(2, dtype=torch.float64)
    tokens = Tokens(-one / 2, -one, one * torch.tensor([1, -1]), one > 0, torch.tensor([0, 2]))
    assert computed(tokens, loss="topr").values.tolist() == [0.5, -0.5]
    assert computed(tokens, loss="topr", weight="0:2").clip.tolist() == [NONE, NONE]
    assert computed(tokens, loss="topr").clip.tolist() == [NONE, HIGH]


# --- KL loss -------------------------------------------------------------------------------------


KL_OPTIONS = {
    "kl_loss_ratio": [False, True],
    "kl_loss_ratio_policy": ["old", "current"],
    "kl_loss_log_ratio_clamp": ["k3:0.7", 0.7, "never"],
    "kl_loss_clamp": ["k3:0.2", 0.2, "k3-product:0.2", "product:0.2", "never"],
}


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@settings(max_examples=25)
@given(
    tokens=batches(width=1.5), chosen=st.fixed_dictionaries(
        {name: st.sampled_from(values) for name, values in KL_OPTIONS.items()}
    ),
)  # fmt: skip
def test_the_kl_loss_equals_the_loop_and_its_gradient_autograd(estimator, tokens, chosen):
    options = LossOptions.of({"kl_loss_estimator": estimator, **chosen})
    new = tokens.new.clone().requires_grad_()
    values = kl_loss(replace(tokens, new=new), options)
    clamps = (options.kl_loss_log_ratio_clamp, options.kl_loss_clamp)
    bounds = [
        x.bound if estimator == "k3" or x.which in ("all", "product") else INF for x in clamps
    ]
    how = {
        "by_ratio": options.kl_loss_ratio,
        "to_itself": options.kl_loss_ratio_policy == "current",
        "of_product": "product" in options.kl_loss_clamp.which,
        "log_clamp": bounds[0],
        "clamp": bounds[1],
        "clamps_all": True,
    }
    want = [x for row in rows_of(tokens) for x in slow.kl(row, estimator, **how)]
    found = values.detach()
    torch.testing.assert_close(found[tokens.mask], torch.tensor(want, dtype=torch.float64), **EXACT)
    assert not found[~tokens.mask].any()
    values.sum().backward()
    names = ("new", "old", "mask", "offsets", "ref")
    arrays = {name: getattr(tokens, name).numpy() for name in names}
    for library in (tokens, replace(tokens, **arrays, infer=None, rewards=None)):
        closed = torch.as_tensor(KlLoss(library, options).gradient)
        torch.testing.assert_close(closed, new.grad, **EXACT)


@pytest.mark.parametrize(("clamp", "gradient"), [("product:10", 0.0), ("all:10", 10.0)])
def test_a_clamped_kl_has_no_gradient_through_the_ratio(clamp, gradient):
    one = torch.tensor([-8.0], dtype=torch.float64)
    new = one.clone().requires_grad_()
    tokens = Tokens(new, one, one, one < 0, torch.tensor([0, 1]), ref=one + 30)
    found = kl_loss(tokens, loss_preset("nemo-rl", kl_loss_clamp=clamp))
    found.sum().backward()
    assert (found.item(), new.grad.item()) == (10.0, gradient)


def test_options_of_the_kl_ratio_need_the_ratio_and_log_probs_of_its_policy():
    config = LossConfig(LossOptions(kl_loss_ratio_policy="current"))
    asked = ("kl_loss_ratio_policy",)
    assert set(config.ignored(asked)) == set(asked)
    assert not LossConfig(LossOptions(kl_loss_ratio=True)).ignored(asked)


# --- the table and its options -------------------------------------------------------------------


def test_the_table_has_every_loss_with_its_fields():
    assert {case[0].get("loss", "ppo") for case in CASES.values()} == set(LOSSES)
    for name, loss in LOSSES.items():
        assert loss.name == name == loss_named(name).name
        assert loss.aggregation in ABOUT_AGGREGATIONS
        assert all(option.text or name in loss.fields for name, option in loss.options.items())
        assert loss.formula
        assert loss.source


class Recorded(Tokens):
    """Tokens that note which of the optional columns are read."""

    def __getattribute__(self, name):
        if name in COLUMNS_OF_ROLES:
            object.__getattribute__(self, "__dict__").setdefault("seen", set()).add(name)
        return super().__getattribute__(name)


COLUMNS_OF_ROLES = {
    "advantages": "advantages",
    "new": "log_probs",
    "old": "old_log_probs",
    "ref": "ref_log_probs",
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_declares_the_roles_that_it_reads(name):
    columns = [torch.tensor([x, -0.5], dtype=torch.float64) for x in (-1.0, -2.0, 1.0, -3.0)]
    new, old, advantages, ref = columns
    ones, ends = torch.ones(2, dtype=torch.bool), torch.tensor([0, 2])
    rewards = torch.ones(1)  # topr reads them in place of the advantage's sign
    tokens = Recorded(new, old, advantages, ones, ends, ref=ref, rewards=rewards, group=ends[:1])
    loss = LOSSES[name]
    object.__setattr__(tokens, "chosen", ones)
    tokens.__dict__["seen"] = set()
    of_selection = () if loss.selects is None else ("cov", "share", "seed")
    values = {x: y for x, y in loss.values(LossOptions(loss=name)).items() if x not in of_selection}
    loss.function(tokens, **values)
    assert {COLUMNS_OF_ROLES[one] for one in tokens.__dict__["seen"]} == {*loss.needs}


def test_an_error_names_the_closest_loss():
    with pytest.raises(UsageError, match="did you mean gspo"):
        loss_named("gsppo")
    with pytest.raises(UsageError, match=r"there are ppo, pg, gspo"):
        loss_named("???")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pg_clp": 1}, "no option 'pg_clp'; did you mean pg_clip"),
        ({"pg_clip": 0}, "pg_clip is 0: must be C, or LOW:HIGH, each above 0"),
        ({"dual_clip": 0.5}, "dual_clip is 0.5: must be "),
        ({"dual_clip": "often"}, "dual_clip is 'often'"),
        ({"aggregation": "sum"}, "aggregation is 'sum': must be 'token-mean'"),
        ({"kl_loss_estimator": "k9"}, "kl_loss_estimator is 'k9'"),
        ({"kl_loss_clamp": "k2:3"}, "kl_loss_clamp is 'k2:3': must be a BOUND above 0"),
    ],
)
def test_an_error_names_the_wrong_option(options, text):
    with pytest.raises(UsageError, match=f"^here: {text}"):
        LossOptions.of(options, "here")


@pytest.mark.parametrize(
    ("loss", "options", "text"),
    [
        ("tis", {"weight": "2:1"}, "weight=2:1: .*LOW:HIGH"),
        ("ipo", {"prob_mask": 1.5}, "prob_mask=1.5: .* less than or equal to 1"),
        ("sapo", {"tau": 1.0}, "tau=1: loss sapo has no option 'tau'; .*tau_pos"),
        ("ppo", {"ratio_clamp": 1.0}, "ratio_clamp=1: .*: --ratio-clamp"),
    ],
)
def test_an_error_names_the_wrong_option_of_a_loss(loss, options, text):
    with pytest.raises(UsageError, match=f"^--loss-option {text}"):
        LOSSES[loss].values(LossOptions(loss=loss, loss_options=options))


@pytest.mark.parametrize("behaviour", ["old", "infer"])
def test_tokens_are_freed_with_their_last_reference(behaviour):
    values = np.linspace(-2, -1, 6)
    offsets, mask = np.array([0, 2, 6]), np.ones(6, np.bool_)
    tokens = Tokens(
        values, values - 0.1, values, mask, offsets, infer=values + 0.1, ref=values - 0.2
    )
    options = LossOptions(behaviour=behaviour)
    gc.disable()
    try:
        loss_named("ppo")(tokens, options)
        assert KlLoss(tokens, options).values.any()
        alive = weakref.ref(tokens)
        del tokens
        assert alive() is None
    finally:
        gc.enable()
