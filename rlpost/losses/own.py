"""A user's loss: a function of tensors as a function of Tokens, whose gradient is autograd's."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, UsageError
from rlpost.kernels.arrays import is_tensor
from rlpost.losses.base import NEEDS, Loss, Surrogate, clip_states
from rlpost.recipe.functions import check_parameters, result_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens

FLAG = "--loss"
SHAPE = "def f(ratio, advantages, *, option=1.0): return -advantages * ratio"
_READ = {
    "ratio": "", "log_ratio": "log_ratio", "advantages": "masked_advantages", "mask": "mask",
    "log_probs": "masked_log_probs", "old_log_probs": "old_log_probs", "offsets": "offsets",
    "infer_log_probs": "infer_log_probs", "ref_log_probs": "ref_log_probs", "group": "group",
    "rewards": "rewards",
}  # fmt: skip
"""What of Tokens a parameter gets; `ratio` is clamped."""
KNOWN = tuple(_READ)
"""Parameters that are no columns by name."""
_OPTIONAL = {x: x for x in ("infer_log_probs", "ref_log_probs")} | {"rewards": "reward"}
_CLAMP, _TWO = 20.0, 2


def as_loss(function: Any, name: str, source: str) -> Loss:
    """Return the loss of a user's function; its formula is the first line of the docstring.

    The function gets tensors, of float64 unless they come from `policy_loss`. Observation tokens
    have a ratio of 1, and 0 in every other column. It returns the loss of each token, or a tuple of
    it and the clip states; without these, they are those of the tokens without gradient.

    Raises:
        UsageError: it is no function, or has parameters that cannot be columns or options.
    """
    check_parameters(function, f"{FLAG} {name}", SHAPE, "one that names a column, or ratio")
    parameters = inspect.signature(function).parameters.values()
    columns = [x.name for x in parameters if x.kind is not x.KEYWORD_ONLY]
    options = [x for x in parameters if x.kind is x.KEYWORD_ONLY]
    names = [x.name for x in options]
    if "ratio" in columns and "ratio_clamp" not in names:
        kind = inspect.Parameter.KEYWORD_ONLY
        options += [inspect.Parameter("ratio_clamp", kind, default=_CLAMP, annotation=float)]

    @wraps(function)
    def of_tokens(tokens: Tokens, **values: Any) -> Surrogate:
        def result(moved: Tokens, others: Mapping[str, Array]) -> tuple[Array, Array | None]:
            arguments = {x: getattr(moved, _READ[x]) for x in columns if _READ.get(x)}
            if "ratio" in columns:
                arguments["ratio"] = moved.ratio(values["ratio_clamp"])
            arguments |= {x: others[x] for x in columns if x not in _READ}
            return _result(name, function, arguments, {x: values[x] for x in names}, moved)

        return _differentiated(name, tokens, result)

    of_tokens.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    loss = Loss(
        name,
        of_tokens,
        formula=(inspect.getdoc(function) or "").partition("\n")[0],
        source=source,
        needs=(*NEEDS, *sorted(_OPTIONAL[x] for x in columns if x in _OPTIONAL)),
        grouped="group" in columns,
        weighs=True,
        linked=True,
        columns=tuple(x for x in columns if x not in _READ),
    )
    try:
        loss.parameters  # noqa: B018 - it raises for wrong annotations
    except UsageError as error:
        raise error.after(f"{FLAG} {name}: ") from None
    return loss


def _differentiated(
    name: str,
    tokens: Tokens,
    result: Callable[[Tokens, Mapping[str, Array]], tuple[Array, Array | None]],
) -> Surrogate:
    """Return what a function returns, with importance weights and the gradient of autograd.

    Args:
        name: of the loss, for errors.
        tokens: of numpy or torch.
        result: returns the loss of each token, and the clip states if it has some, from tokens of
            torch and from columns by name.

    Raises:
        UsageError: no gradient reaches the log-probs.
        DataError: a gradient is not finite.
    """
    import torch  # noqa: PLC0415 - a user's loss needs it

    def tensor(array: Array) -> Array:
        return array if is_tensor(array) else torch.from_numpy(array)

    with torch.inference_mode(mode=False), torch.enable_grad():
        new, mask = tensor(tokens.new), tensor(tokens.mask)
        live = new if new.requires_grad else new.detach().clone().requires_grad_()
        names = ("old", "advantages", "offsets", "infer", "ref", "rewards", "group")
        columns = {x: getattr(tokens, x) for x in names if getattr(tokens, x) is not None}
        copies = {x: tensor(column).clone() for x, column in columns.items()}
        moved = replace(tokens, new=live, mask=mask, **copies)
        others = {**tokens.columns, **tokens.of_rows}
        values, clip = result(moved, {x: tensor(y).clone() for x, y in others.items()})
        if tokens.weights is not None:
            values = values * tensor(tokens.weights)
        values = torch.where(mask, values, torch.zeros((), dtype=values.dtype))
        slope = None
        if values.requires_grad:
            total = values.sum()
            slope = torch.autograd.grad(total, live, retain_graph=True, allow_unused=True)[0]
        gradient = torch.zeros_like(new) if slope is None else torch.where(mask, slope, 0.0)
    if slope is None and bool((values != 0).any()):
        raise UsageError(
            f"loss {name}: no gradient of its values reaches the log-probs",
            tip="compute it from ratio, log_ratio or log_probs, without .detach()",
        )
    if not bool(gradient.isfinite().all()):
        raise DataError(f"loss {name}: the gradient of a token is not finite")
    ratio = moved.ratio(_CLAMP).detach()
    if clip is None:
        stopped = mask & (gradient == 0) & (moved.masked_advantages != 0) & (slope is not None)
        clip = clip_states(stopped & (ratio < 1), stopped & (ratio > 1))
    surrogate = Surrogate(values, clip, gradient.detach(), ratio)
    if is_tensor(tokens.new):
        return surrogate
    return Surrogate(*(part.detach().numpy() for part in surrogate))


def _result(
    name: str,
    function: Callable[..., Any],
    arguments: Mapping[str, Array],
    options: Mapping[str, Any],
    tokens: Tokens,
) -> tuple[Array, Array | None]:
    """Return the loss of each token, and its clip states if the function returns some."""
    result = result_of(f"loss {name}", function, arguments, options)
    parts = result if isinstance(result, tuple) else (result, None)
    shape = tuple(tokens.new.shape)
    right = len(parts) == _TWO and is_tensor(parts[0]) and tuple(parts[0].shape) == shape
    if right and (parts[1] is None or tuple(parts[1].shape) == shape):
        clip = parts[1]
        return parts[0], None if clip is None else tokens.xp.astype(clip, tokens.xp.uint8)
    came, tip = type(result).__name__, ""
    if is_tensor(result):
        shape = tuple(result.shape)
        came = str(list(shape)) if shape else "a scalar"
        if not shape:
            tip = "return the loss of each token; --aggregation computes the mean"
        elif shape == (len(tokens.offsets) - 1,):
            came += ", one for each response"
            tip = "torch.repeat_interleave(x, offsets.diff()) has one for each token"
    elif came == "ndarray":
        tip = "compute with torch: the gradient is autograd's"
    raise UsageError(
        f"loss {name} returned {came}; a tensor with the loss of each of {len(tokens.new)} tokens "
        "is needed, or a tuple of it and of their clip states",
        tip=tip,
    )
