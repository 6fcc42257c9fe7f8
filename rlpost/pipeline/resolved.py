"""A recipe resolved for an input: what is computed on tokens, and what on responses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from rlpost.errors import UsageError
from rlpost.estimators import ESTIMATORS, completed, estimator_named
from rlpost.estimators.groups import raw
from rlpost.kernels.histogram import SMALLEST
from rlpost.recipe.flags import flag_of
from rlpost.recipe.recipe import GROUP_COLUMNS
from rlpost.recipe.roles import RECORDED, ROLES, is_read_by_name, kind_of

if TYPE_CHECKING:
    from rlpost.estimators import Estimator
    from rlpost.recipe.recipe import Recipe, Scope
    from rlpost.recipe.roles import ColumnMap, Unit

ProcessRewards = Literal["response", "token"]
Lengths = Literal["tokens", "column", "unknown"]


@dataclass(frozen=True)
class ResolvedRecipe:
    """A recipe resolved for the columns of an input."""

    recipe: Recipe
    estimator: Estimator
    kl_reads: frozenset[str]
    """Token roles that KL needs; empty if the input lacks one."""
    ratio_reads: frozenset[str]
    """Token roles of the importance ratio in KL, for k4; empty if the input lacks one."""
    varying: bool
    """Token rewards are more than one terminal reward for each response."""
    plain: bool
    """The estimator returns the same advantage for all policy tokens of a response."""
    charged: bool
    """KL, or distillation KL, is subtracted from each token after the estimator."""
    whiten: bool
    """Advantages are whitened."""
    process: ProcessRewards | None
    """How process rewards are added; None if there are none, or if the estimator reads none."""
    input_mask: str | None = None
    """The input's column of sample masks."""
    stale_mask: bool = False
    """The input has the sample mask of an earlier run, which this run replaces."""
    has_kl: bool = False
    """The input has log-probs of both policies, whether KL is asked for or not."""
    lengths: Lengths = "tokens"
    """What sets the lengths of responses. Without tokens, unknown lengths are 1 throughout, and
    what needs `lengths` is an error."""
    grouped: bool = True
    """The input has prompt groups."""
    rewarded: bool = True
    """The input has rewards, or components of them."""
    unit: Unit = "row"
    """What statistics of responses count."""
    unit_reason: str = ""
    """Why; empty if the input has no column of rollouts."""
    failures: bool = False
    """The input says which responses failed."""
    turn_rewards: bool = False
    """The input has rewards of turns."""
    attempts: bool = False
    """The input says which attempt of the run, or of a rollout, a row is."""
    compares_recorded: bool = False
    """Advantages that a trainer recorded are compared with the computed ones."""

    @property
    def charges_kl(self) -> bool:
        """The KL penalty of each token is subtracted from its own advantage."""
        return self.charged and self.recipe.numerics.kl_credit == "token"

    @property
    def constant(self) -> bool:
        """All policy tokens of a response get the same advantage."""
        return self.plain and not self.charged and self.recipe.top_entropy_quantile is None

    @property
    def rows_only(self) -> bool:
        """The input is processed without tokens."""
        return self.lengths != "tokens"

    @property
    def unit_facts(self) -> dict[str, str]:
        """What statistics of responses count, and why; for summaries."""
        return {"name": self.unit, "reason": self.unit_reason}

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the columns to write, which `rlpost.pipeline.output.emitted` checks."""
        recipe = self.recipe
        if recipe.emit is not None:
            return recipe.emit
        rewards = ["response_level_rewards"] if self.has_rewards else []
        if self.rows_only:
            weight = ["sample_weight"] if recipe.weighs_responses else []
            groups = [name for name in GROUP_COLUMNS if self.rewarded or name == "group_size"]
            columns = ["response_advantage", *rewards, "sample_mask", *weight]
            return (*columns, *(groups if self.grouped else ()))
        names = ["advantages", "returns", *rewards]
        names += ["sample_mask"] if self.masks else []
        names += ["sample_weight"] if recipe.weighs_responses else []
        names += ["is_weight"] if recipe.is_weight else []
        return (*names, *(["final_response_mask"] if recipe.rejects_tokens else []))

    @property
    def excuses_failed(self) -> bool:
        """Nothing is computed from the numbers of a response that failed, so any are allowed."""
        return self.failures and self.recipe.failures in ("drop", "zero")

    @property
    def has_rewards(self) -> bool:
        """Responses have rewards: those of the input, or those that the estimator makes."""
        return self.rewarded or self.estimator.makes_rewards

    @property
    def has_rollouts(self) -> bool:
        """The rollout of each row is known, and may have several rows."""
        return self.unit == "rollout" or "rollout" in self.estimator.needs

    @property
    def chains_turns(self) -> bool:
        """The rows of a rollout follow each other in a return, a scan or an estimator."""
        return self.joins or "rollout_order" in self.estimator.needs

    @property
    def orders_rows(self) -> bool:
        """The order of a rollout's rows can change a number."""
        return self.has_rollouts or self.chains_turns

    @property
    def can_count_rows(self) -> bool:
        """Rollouts count, and no estimator or scan needs to know which rows are of one."""
        needed = self.recipe.scan == "rollout" or "rollout" in self.estimator.needs
        return self.unit == "rollout" and not needed

    @property
    def least_advantage(self) -> float:
        """The least size of an advantage that is not 0: a mean of the batch leaves its rounding."""
        return 2.0**-40 if self.whiten or self.estimator.over_batch else SMALLEST

    @property
    def joins(self) -> bool:
        """Scans run over the rows of a rollout."""
        return self.recipe.scan == "rollout"

    @property
    def scans_rows(self) -> bool:
        """A scan ends with each row, where the next row of its rollout could go on."""
        recipe, estimator = self.recipe, self.estimator
        if recipe.scan == "rollout" or not scans(estimator):
            return False
        return "values" in estimator.token_columns or recipe.gamma != 1

    @property
    def own_rewards(self) -> bool:
        """Each row of a rollout has a reward of its own."""
        summed = self.joins and self.recipe.rollout_reward == "sum"
        return summed or self.estimator.rewards is not None

    @property
    def reads_rewards(self) -> bool:
        """The estimator reads rewards, and so the KL penalty that is subtracted from them."""
        return _reads_rewards(self.estimator)

    @property
    def kl(self) -> bool:
        """KL is computed: it is asked for, and the input has log-probs of both policies."""
        return bool(self.kl_reads)

    @property
    def log_ratio(self) -> bool:
        """The log-ratio of trainer to rollout engine is written."""
        return "engine_log_ratio" in self.written

    @property
    def same_returns(self) -> bool:
        """Written returns equal written advantages, so that both share one encoding."""
        recipe, returns = self.recipe, self.estimator.returns
        changed = recipe.advantage_clip is not None or bool(recipe.teachers)
        changed |= self.whiten and not self.whitened_returns
        changed |= recipe.top_entropy_quantile is not None
        return not changed and returns != "own"

    @property
    def masks(self) -> bool:
        """Responses get a `sample_mask`; one of the input by this name may stay as it is."""
        recipe = self.recipe
        return (
            recipe.has_masks
            or recipe.nonfinite == "mask"
            or (self.failures and recipe.failures in ("drop", "mask"))
            or (self.attempts and recipe.attempts == "newest")
            or recipe.rejects_responses
            or self.input_mask not in (None, "sample_mask")
            or self.stale_mask
        )

    @property
    def whitened_returns(self) -> bool:
        """Whitening changes returns as it changes advantages."""
        return self.estimator.returns == "whitened" or _whitens_batch(self.recipe, self.estimator)

    @property
    def norm(self) -> tuple[Scope, Scope]:
        """Scopes of mean and deviation in the normalisation of rewards."""
        return _norm(self.recipe, self.estimator)


def _norm(recipe: Recipe, estimator: Estimator) -> tuple[Scope, Scope]:
    return recipe.norm_mean or estimator.norm_mean, recipe.norm_std or estimator.norm_std


def resolve_recipe(recipe: Recipe, columns: ColumnMap) -> ResolvedRecipe:
    """Resolve a recipe: which parts of the pipeline compute on tokens, which on responses.

    Raises:
        UsageError: options exclude each other, or the estimator has no such option.
    """
    if columns.stored:  # the output has them in its metadata, too
        recipe = recipe.model_copy(update={"columns": {**columns.stored, **recipe.columns}})
    estimator = estimator_of(recipe).bound(columns.columns)
    recipe = completed(recipe, estimator)
    _check(recipe, estimator)
    process = process_rewards(recipe, estimator) if "token_rewards" in columns else None
    in_rewards = recipe.kl_coef > 0 and recipe.numerics.kl_credit == "return"
    varying = in_rewards or recipe.whiten_rewards or process == "token"
    varying |= recipe.bootstrap is not None
    unit, unit_reason = _unit(recipe, estimator, columns)
    one_end = columns.rows_only or (
        recipe.numerics.terminal_reward == "last_policy_token"
        and recipe.numerics.observations not in ("restart", "cut")
    )
    plain_return = (
        estimator.undiscounted_is_constant
        and recipe.gamma == 1
        and not varying
        and one_end
        and recipe.scan == "row"
    )
    usual = estimator.whiten_advantages or _whitens_batch(recipe, estimator)
    whiten = recipe.whiten_advantages
    own = recipe.kl_coef > 0 and recipe.numerics.kl_credit == "token"
    plain = estimator.level == "response" or plain_return
    charged = own or (bool(recipe.teachers) and "distillation" not in estimator.columns)
    kl_reads = _kl_reads(recipe, columns)
    lengths: Lengths = "column" if "response_length" in columns else "unknown"
    return ResolvedRecipe(
        recipe=recipe,
        estimator=estimator,
        kl_reads=kl_reads if recipe.asks_kl else frozenset(),
        ratio_reads=_ratio_reads(recipe, columns),
        varying=varying,
        plain=plain,
        charged=charged,
        whiten=usual if whiten is None else whiten,
        process=process,
        input_mask=columns.columns.get("sample_mask"),
        stale_mask=recipe.replace and "sample_mask" in columns.ignored.get("sample_mask", ()),
        has_kl=bool(kl_reads),
        lengths=lengths if columns.rows_only else "tokens",
        grouped="group" in columns,
        rewarded="reward" in columns or bool(recipe.reward_components),
        unit=unit,
        unit_reason=unit_reason,
        failures="failure" in columns,
        attempts="run_attempt" in columns or {"rollout", "attempt"} <= columns.columns.keys(),
        turn_rewards="turn_reward" in columns,
        compares_recorded=RECORDED in columns,
    )


def estimator_of(recipe: Recipe) -> Estimator:
    """Return the estimator by the name that the user typed, with the numerics' `outcome`."""
    estimator = estimator_named(recipe.estimator)
    estimator = replace(estimator, name=recipe.estimator_name or estimator.name)
    if recipe.numerics.outcome == "return":
        return estimator
    if not estimator.outcome:
        names = ", ".join(one.name for one in ESTIMATORS.values() if one.outcome)
        raise UsageError(
            f"--numerics outcome=response: estimator {estimator.name} has no such choice; it is "
            f"one of {names}"
        )
    return replace(estimator, function=raw, undiscounted_is_constant=False, returns="advantages")


_REWARDS = frozenset({"rewards", "token_rewards", "step_score"})
"""Columns of an estimator that have rewards, and so the KL penalty that is subtracted from them."""
_TOKEN_BASELINES = frozenset({"values", "reward_baseline", "position_baseline"})


def _reads_rewards(estimator: Estimator) -> bool:
    return not _REWARDS.isdisjoint(estimator.needs)


def bootstraps(recipe: Recipe, estimator: Estimator) -> bool:
    """Return whether the returns of an estimator are sums of rewards in units of values."""
    summed = "token_rewards" in estimator.columns and "gamma" in estimator.keywords
    unscaled = estimator.rewards is None and _norm(recipe, estimator) == ("none", "none")
    return summed and unscaled and recipe.estimator in ESTIMATORS


def process_rewards(recipe: Recipe, estimator: Estimator) -> ProcessRewards | None:
    """Return how an estimator gets process rewards; None if it reads no rewards to add them to."""
    if not _reads_rewards(estimator):
        return None
    if recipe.numerics.process_rewards != "auto":
        return recipe.numerics.process_rewards
    if estimator.level == "response" or estimator.rewards is not None:
        return "response"
    own = not _TOKEN_BASELINES.isdisjoint(estimator.columns)
    return "token" if own or _norm(recipe, estimator) == ("none", "none") else "response"


def _whitens_batch(recipe: Recipe, estimator: Estimator) -> bool:
    """Return whether whitening over tokens replaces the normalisation over responses."""
    return estimator.over_batch is not None and recipe.options.get("batch_over") == "tokens"


def _check(recipe: Recipe, estimator: Estimator) -> None:
    """Raise UsageError if an estimator lacks options, or has options that it does not support."""
    if "components" in estimator.columns and not recipe.reward_components:
        raise UsageError(
            f"--estimator {estimator.name} needs --reward-components: two columns or more"
        )
    if "distillation" in estimator.columns and not recipe.teachers:
        raise UsageError(
            f"--estimator {estimator.name} needs --teacher COLUMN=WEIGHT, a column of log-probs"
        )
    by_advantage = [str(one) for one in recipe.is_filter if one.where != "any"]
    if recipe.numerics.correction == "first" and by_advantage:
        raise UsageError(
            f"--is-filter {by_advantage[0]}: needs advantages, and --numerics correction=first "
            "rejects tokens before there are any; add --numerics correction=last"
        )
    if recipe.bootstrap is not None and not bootstraps(recipe, estimator):
        raise UsageError(
            f"--bootstrap {recipe.bootstrap}: the advantages of estimator {estimator.name} are no "
            "sums of rewards in units of values; leave it out, or use gae, reinforce or a kin of it"
        )
    _check_scan(recipe, estimator)
    for name in ("norm_mean", "norm_std"):
        scope = getattr(recipe, name)
        if estimator.normalises and scope in ("batch", "running"):
            raise UsageError(
                f"{flag_of(name)} {scope}: estimator {estimator.name} normalises within groups; "
                f"{flag_of(name)} group, others or none is needed"
            )
    joining = f"estimator {estimator.name}" if estimator.joins_rollouts else "--scan rollout"
    if recipe.unit == "row" and (estimator.joins_rollouts or recipe.scan == "rollout"):
        raise UsageError(
            f"--unit row: {joining} joins the rows of a rollout, which has one reward; leave "
            "--unit out, or use --unit rollout"
        )
    if recipe.unit == "rollout" and compares_rows(estimator):
        raise UsageError(
            f"--unit rollout: estimator {estimator.name} compares rows itself, so rows of one "
            "rollout would count several times; leave --unit rollout out, or keep one row of each "
            "rollout"
        )


def _unit(recipe: Recipe, estimator: Estimator, columns: ColumnMap) -> tuple[Unit, str]:
    """Return what statistics of responses count, and why."""
    if estimator.joins_rollouts or recipe.scan == "rollout":
        scan = recipe.scan == "rollout"
        what = "--scan rollout" if scan else f"estimator {estimator.name}"
        return "rollout", f"{what} joins the rows of a rollout"
    if "rollout" not in columns and recipe.unit != "rollout":
        return "row", ""
    if compares_rows(estimator):
        return "row", f"estimator {estimator.name} compares rows"
    unit = columns.unit(recipe.unit)
    if recipe.unit is not None:
        return unit, f"the recipe sets unit {unit}"
    column = columns.column("rollout")
    if unit == "row":
        return unit, f"--map rollout={column} or --unit rollout counts rollouts"
    return unit, f"`{column}` identifies them"


def _check_scan(recipe: Recipe, estimator: Estimator) -> None:
    if recipe.scan == "row":
        return
    if not scans(estimator):
        names = ", ".join(one.name for one in ESTIMATORS.values() if scans(one))
        raise UsageError(
            f"--scan rollout: estimator {estimator.name} has no scan of token rewards that could "
            f"go on in the next row; {names} have one"
        )
    separate = {
        "--option lambda_policy": recipe.options.get("lambda_policy") is not None,
        "--option lambda_value": recipe.options.get("lambda_value") is not None,
        "--option length_adaptive_alpha": recipe.options.get("length_adaptive_alpha", 0) > 0,
        f"--numerics observations={recipe.numerics.observations}": recipe.numerics.observations
        != "skip",
    }
    for flag, conflicts in separate.items():
        if conflicts:
            raise UsageError(
                f"--scan rollout excludes {flag}: rows are joined by one λ, over policy tokens"
            )
    if recipe.rollout_reward == "sum" and _norm(recipe, estimator) != ("none", "none"):
        raise UsageError(
            "--scan rollout with --rollout-reward sum leaves each reward on its row, and estimator "
            f"{estimator.name} normalises the reward of a rollout; use --rollout-reward last, "
            "equal or mean, or --norm-mean none --norm-std none"
        )


def scans(estimator: Estimator) -> bool:
    """Return whether the advantages of an estimator are a scan that the next row can continue."""
    return (
        any(estimator.function is one.function for one in ESTIMATORS.values())
        and "token_rewards" in estimator.token_columns
        and {"token_rewards", "values"}.issuperset(estimator.token_columns)
        and "gamma" in estimator.keywords
        and estimator.rewards is None
        and estimator.token_weights is None
    )


def compares_rows(estimator: Estimator) -> bool:
    """Return whether an estimator compares rows, so that a rollout would count several times."""
    if estimator.joins_rollouts:
        return False
    of_rows = {"group", "position_baseline"} & {*estimator.columns}
    needs = {*estimator.needs} - {"batch"}  # that of a rollout is that of each of its rows
    kinds = {kind_of(role) for role in needs if role in ROLES or is_read_by_name(role)}
    # A rollout of a group has the mean of its rows, and codes and flags have none.
    without_mean = "offsets" in estimator.parameters and estimator.level == "response"
    return bool(
        of_rows or estimator.rewards is not None or (without_mean and kinds & {"key", "flag"})
    )


def _kl_reads(recipe: Recipe, columns: ColumnMap) -> frozenset[str]:
    policy = "log_probs" if recipe.numerics.kl_policy == "current" else "old_log_probs"
    reads = {policy, "ref_log_probs"}
    if not all(role in columns for role in reads):
        return frozenset()
    return frozenset(reads | _ratio_reads(recipe, columns))


def _ratio_reads(recipe: Recipe, columns: ColumnMap) -> frozenset[str]:
    """Return the roles of the importance ratio in a KL estimate: those of k4, if both are there."""
    both = frozenset({"log_probs", "old_log_probs"})
    return both if recipe.kl_kind == "k4" and both <= {*columns.columns} else frozenset()
