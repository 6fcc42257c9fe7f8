"""A user's loss: a function of tensors, with options of its own."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, UsageError
from rlpost.kernels.arrays import is_tensor
from rlpost.losses.base import NEEDS, Loss, Surrogate, Tokens, clip_states
from rlpost.recipe.functions import (
    check_parameters,
    line_of,
    options_of,
    typed_options,
    with_defaults,
)
from rlpost.recipe.loss import LossOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlpost.kernels.arrays import Array
    from rlpost.recipe.functions import Option

FLAG = "--loss"
SHAPE = "def f(ratio, advantages, *, option=1.0): return -advantages * ratio"
KNOWN = (
    "ratio", "log_ratio", "advantages", "log_probs", "old_log_probs", "infer_log_probs",
    "ref_log_probs", "mask", "offsets", "group", "rewards",
)  # fmt: skip
"""Parameters that are no columns by name."""
_CLAMP, _TWO = 20.0, 2


def as_loss(thing: Any, name: str, source: str) -> Loss:
    """Return a Loss; that of a function has the first line of its docstring as formula.

    Raises:
        UsageError: it is no function, or has parameters that cannot be columns or options.
    """
    check_parameters(thing, f"{FLAG} {name}", SHAPE, "one that names a column, or ratio")
    formula = (inspect.getdoc(thing) or "").partition("\n")[0]
    own = OwnLoss(name, thing, formula=formula, source=source)
    roles = {"ref_log_probs": "ref_log_probs", "infer_log_probs": "infer_log_probs"}
    roles |= {"rewards": "reward"}
    optional = [role for name, role in roles.items() if name in own.parameters]
    return replace(own, needs=(*NEEDS, *sorted(optional)), grouped="group" in own.parameters)


@dataclass(frozen=True)
class OwnLoss(Loss):
    """A user's loss.

    The function gets tensors, of float64 unless they come from `policy_loss`. Observation tokens
    have a ratio of 1, and 0 in every other column. It returns the loss of each token, or a tuple of
    it and the clip states. Its gradient, and without clip states of its own those of the tokens
    without gradient, are autograd's.
    """

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of the function by name."""
        return inspect.signature(self.function).parameters

    @cached_property
    def named_columns(self) -> tuple[str, ...]:
        """The parameters that are columns of the input by name."""
        parameters = self.parameters.values()
        return tuple(
            x.name for x in parameters if x.kind is not x.KEYWORD_ONLY and x.name not in KNOWN
        )

    @property
    def aggregation(self) -> str:
        """How token losses are aggregated by default."""
        return "token-mean"

    @cached_property
    def own_options(self) -> dict[str, Option]:
        """The options that are no field of LossOptions, by name."""
        try:
            return options_of([self.function], LossOptions.model_fields)
        except UsageError as error:
            raise error.after(f"{FLAG} {self.name}: ") from None

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The fields of LossOptions that it reads, and its own options."""
        shared = {
            one.name: one.default
            for one in self.parameters.values()
            if one.kind is one.KEYWORD_ONLY and one.name in LossOptions.model_fields
        }
        clamp = {"ratio_clamp": _CLAMP} if "ratio" in self.parameters else {}
        options = {name: x.default for name, x in self.own_options.items() if not x.required}
        return {**clamp, **shared, **({"loss_options": options} if self.own_options else {})}

    def values(self, options: LossOptions) -> dict[str, Any]:
        """Return the options that it reads; its own are in `loss_options`.

        Raises:
            UsageError: it has no such option, a value has another type, or one is missing.
        """
        owner, field = f"loss {self.name}", "loss_options"
        typed = typed_options(owner, self.own_options, options.loss_options, field=field)
        if not self.own_options:
            return super().values(options)
        typed = with_defaults(owner, self.own_options, typed, field=field)
        parsed = {name: self.own_options[name].parsed(x) for name, x in typed.items()}
        return {**super().values(options), field: {**self.defaults[field], **parsed}}

    def gradient(
        self, tokens: Tokens, options: LossOptions, surrogate: Surrogate, weights: Array
    ) -> Array:
        """Return the derivative of Σ weight · loss by the log-prob of each token, [T].

        The loss of a token may depend on other log-probs, so it is computed again.
        """
        del surrogate
        weights = weights if tokens.weights is None else tokens.weights * weights
        return self(replace(tokens, weights=weights), options).gradient

    def __call__(self, tokens: Tokens, options: LossOptions) -> Surrogate:
        """Return the loss of these tokens.

        Raises:
            UsageError: the function raised an exception, or returned something else.
            DataError: a gradient is not finite.
        """
        import torch  # noqa: PLC0415 - an own loss needs it

        def tensor(array: Array) -> Array:
            return array if is_tensor(array) else torch.from_numpy(array)

        tokens = tokens.divided_by(options.behaviour)
        with torch.inference_mode(mode=False), torch.enable_grad():
            new = tensor(tokens.new)
            live = new if new.requires_grad else new.detach().clone().requires_grad_()
            mask = tensor(tokens.mask)
            others = {
                name: tensor(x).clone()
                for name in ("old", "advantages", "offsets", "infer", "ref", "rewards", "group")
                if (x := getattr(tokens, name)) is not None
            }
            moved = Tokens(new=live, mask=mask, **others)
            values, clip = self._result(
                moved, {**tokens.columns, **tokens.of_rows}, self.values(options), tensor
            )
            if tokens.weights is not None:
                values = values * tensor(tokens.weights)
            values = torch.where(mask, values, torch.zeros((), dtype=values.dtype))
            found = None
            if values.requires_grad:
                found = torch.autograd.grad(
                    values.sum(), live, retain_graph=True, allow_unused=True
                )[0]
            gradient = torch.zeros_like(new) if found is None else torch.where(mask, found, 0.0)
        if found is None and bool((values != 0).any()):
            raise UsageError(
                f"loss {self.name}: no gradient of its values reaches the log-probs",
                tip="compute it from ratio, log_ratio or log_probs, without .detach()",
            )
        if not bool(gradient.isfinite().all()):
            raise DataError(f"loss {self.name}: the gradient of a token is not finite")
        ratio = moved.ratio(_CLAMP).detach()
        if clip is None:
            stopped = mask & (gradient == 0) & ~moved.advantage_zero & (found is not None)
            clip = clip_states(stopped & (ratio < 1), stopped & (ratio > 1))
        clip = torch.where(mask, clip, torch.zeros_like(clip))
        surrogate = Surrogate(values, clip, gradient.detach(), ratio)
        if is_tensor(tokens.new):
            return surrogate
        return Surrogate(*(part.detach().numpy() for part in surrogate))

    def _result(
        self, tokens: Tokens, columns: Mapping[str, Array], values: dict[str, Any], tensor: Any
    ) -> tuple[Array, Array | None]:
        """Return the loss of each token, and its clip states if the function returns some."""
        known: dict[str, Callable[[], Array]] = {
            "ratio": lambda: tokens.ratio(values.get("ratio_clamp", _CLAMP)),
            "log_ratio": lambda: tokens.log_ratio,
            "advantages": lambda: tokens.masked_advantages,
            "log_probs": lambda: tokens.masked_log_probs,
            "old_log_probs": lambda: tokens.old_log_probs,
            "infer_log_probs": lambda: tokens.xp.where(tokens.mask, tokens.infer, 0.0),
            "ref_log_probs": lambda: tokens.xp.where(tokens.mask, tokens.ref, 0.0),
        }
        arguments: dict[str, Any] = {}
        for name, one in self.parameters.items():
            if one.kind is one.KEYWORD_ONLY:
                continue
            if name in known:
                arguments[name] = known[name]()
            elif name in KNOWN:
                arguments[name] = getattr(tokens, name)
            else:
                arguments[name] = tensor(columns[name]).clone()
        own = {**values, **values.get("loss_options", {})}
        reads = {name: own[name] for name, x in self.parameters.items() if x.kind is x.KEYWORD_ONLY}
        try:
            result: Any = self.function(**arguments, **reads)
        except Exception as error:
            where = f"loss {self.name}{line_of(error, self.function)}"
            inputs = ", ".join(f"{name} {list(x.shape)}" for name, x in arguments.items())
            raise UsageError(
                f"{where}: {type(error).__name__}: {error}; it was called with {inputs}",
                tip="correct the function; --debug prints the traceback",
            ) from error
        parts = result if isinstance(result, tuple) else (result, None)
        shape = tuple(tokens.new.shape)
        right = len(parts) == _TWO and is_tensor(parts[0]) and tuple(parts[0].shape) == shape
        if not right or (parts[1] is not None and tuple(parts[1].shape) != shape):
            raise self._wrong_result(result, shape[0], len(tokens.offsets) - 1)
        clip = parts[1]
        return parts[0], None if clip is None else tokens.xp.astype(clip, tokens.xp.uint8)

    def _wrong_result(self, result: Any, tokens: int, rows: int) -> UsageError:
        """Return the error of a result that is not the loss of each token."""
        came, tip = type(result).__name__, ""
        if is_tensor(result):
            shape = tuple(result.shape)
            came = str(list(shape)) if shape else "a scalar"
            if not shape:
                tip = "return the loss of each token; --aggregation computes the mean"
            elif shape == (rows,):
                came += ", one for each response"
                tip = "torch.repeat_interleave(x, offsets.diff()) has one for each token"
        elif came == "ndarray":
            tip = "compute with torch: the gradient is autograd's"
        return UsageError(
            f"loss {self.name} returned {came}; a tensor with the loss of each of {tokens} tokens "
            "is needed, or a tuple of it and of their clip states",
            tip=tip,
        )
