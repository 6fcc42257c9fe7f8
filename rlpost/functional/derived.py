"""Public forms of formulas, for ragged and for padded arrays: what a parameter is, its name says.

A formula takes arrays of one type, numbers that are finite, codes of ids, and rows that are sorted
by group. Its public form takes ids in any order, checks all arguments, and returns numbers in the
library and type, and on the device, of the input.
"""

from __future__ import annotations

import inspect
import math
import re
from functools import cache, partial
from inspect import BoundArguments, Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlpost.errors import DataError, UsageError
from rlpost.estimators.base import FIELDS
from rlpost.functional import arguments as checks
from rlpost.io.keys import name_ranks
from rlpost.kernels.arrays import like, namespace
from rlpost.kernels.arrays.numpy_arrays import canonical_order, placed
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.moments import group_offsets
from rlpost.kernels.rollouts import rollout_ranks
from rlpost.kernels.segments import compact_offsets, positions_of
from rlpost.recipe.functions import Option, options_of
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import ROLES, is_nullable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from rlpost.functional.arguments import Ids
    from rlpost.kernels.moments import Floats, Integers

    Function = Callable[..., Any]

# What a parameter is: a role of the input, or one of these. All else is an option.
_KINDS = {name: role.kind for name, role in ROLES.items() if name != "mask"}
_CONSTANT = {"old_log_probs", "infer_log_probs", "sum_pi_squared", "entropy", "age"}
_CONSTANT |= {"advantages", "is_weight"}
_FINITE = {*_CONSTANT, "log_probs", "ref_log_probs"}
TOKENS = {x for x, kind in _KINDS.items() if kind == "tokens"}
TOKENS |= {"old_values", "returns", "distillation", "age"}
"""Numbers of tokens: [T], or [N, T] if they are padded."""
RESPONSES = {x for x, kind in _KINDS.items() if kind in ("number", "flag")}
RESPONSES |= {"rewards", "tokens", "components", "numbers", "weights"}
"""Numbers of responses, [N]."""
_MAY_LACK = {*filter(is_nullable, RESPONSES), "components"}  # a number, which is then NaN
IDS = {x for x, kind in _KINDS.items() if kind == "key"} | {"domain_name", "units"}
"""N ids."""
_STRUCTURE = {"offsets", "mask"}
_SCOPED, _SCOPES = {"norm_mean", "norm_std"}, Literal["group", "others", "none"]
_OPTIONAL = {"batch", "domain", "branch", "mask"}
_TEXTS = {
    "offsets": "[N+1] first token of each response; the last element is T.",
    "mask": "[T], 0 on observation tokens; None if there are none.",
    "group": "N ids of the prompt groups, in any order.",
    "batch": "N ids of the batches; None for one batch.",
    "domain": "N ids of the domains (roles of agents); None for one domain.",
    "turn": "[N] number of each row's turn in its rollout.",
    "branch": "N ids, which order rows of one turn by name; None: each turn is one row.",
}
_RAISES = """Raises:
    UsageError: a shape, a type or an option is wrong, or arrays are of different libraries.
    DataError: a number that must be finite is not, or two rows are one turn."""


def checked(
    formula: Function, *parts: Function, name: str = "", returns: str = "", mask: bool = True
) -> Function:
    """Return the public form of a formula for ragged arrays.

    Args:
        formula: what computes.
        parts: whose options its `**options` are.
        name: of the public form, if it is another one.
        returns: the type of the result, if it is another one; `Array` is advantages alone.
        mask: a formula of tokens has observation tokens to leave out.
    """
    declared, name = signature(formula).parameters, name or formula.__name__
    parameters = [p for p in _public(formula, parts) if mask or p.name != "mask"]
    returns = returns or signature(formula).return_annotation.replace("Floats", "Array")
    public = Signature(parameters, return_annotation=returns)
    names = [p.name for p in parameters]
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    required = {p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    arrays = [x for x in names if x in TOKENS | RESPONSES | IDS | _STRUCTURE]
    others = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
    known, options = {*names}, {*names} - {*arrays, others}
    needed = {x for x, p in declared.items() if p.default is p.empty}
    compute = _of_responses if TOKENS.union(_STRUCTURE).isdisjoint(names) else _of_tokens

    def call(*arguments: Any, **keywords: Any) -> Any:
        given = dict(zip(positional, arguments, strict=False)) | keywords
        fits = len(given) == len(arguments) + len(keywords) and required <= given.keys()
        if not fits or others or not given.keys() <= known:  # bind is slow, and has the error
            given = public.bind(*arguments, **keywords).arguments
        chosen = {x: _parsed((formula, *parts), x, given[x]) for x in given if x in options}
        prepared = partial(formula, **chosen, **given.get(others, {}))
        columns = {x: given.get(x) for x in arrays}
        present = {x: y for x, y in columns.items() if y is not None or x in needed}
        result = compute(prepared, declared, present, masked=mask)
        return result[0] if returns == "Array" and isinstance(result, tuple) else result

    return public_form(call, name, public, _documented(formula, name, public, parts))


def padded(function: Function) -> Function:
    """Return the form of a public function for padded arrays; itself if it takes any shape."""
    declared = signature(function)
    if "offsets" not in declared.parameters:
        return function
    masked = "mask" in declared.parameters
    parameters = {x: p for x, p in declared.parameters.items() if x != "mask"}
    parameters["offsets"] = parameters["offsets"].replace(name="mask")
    public = declared.replace(
        parameters=[p for p in parameters.values() if masked or p.name != "mask"]
    )

    def call(*arguments: Any, **keywords: Any) -> Any:
        given = public.bind(*arguments, **keywords).arguments
        columns = {"mask": given["mask"]} if masked else {}
        columns |= {x: value for x, value in given.items() if x in TOKENS and value is not None}
        rows, width = _shape(**columns)
        flat = {x: value.reshape(-1) for x, value in columns.items()}
        first = next(iter(columns.values()))
        flat["offsets"] = namespace(first).arange(rows + 1, first) * width
        bound = BoundArguments(declared, {**given, **flat})
        result = function(*bound.args, **bound.kwargs)
        return checks.each(result, lambda x: x.reshape(rows, width) if masked and x.ndim else x)

    doc = (inspect.getdoc(function) or "").partition("\n\n>>>")[0].replace("[T]", "[N, T]")
    doc = re.sub(r"\n    offsets: .*", "", doc).replace(
        "; None if there are none.", " and padding."
    )
    return public_form(call, function.__name__, public, doc, module="rlpost.functional.padded")


def public_form(
    call: Function, name: str, public: Signature, doc: str, module: str = "rlpost.functional"
) -> Function:
    """Return a function of arrays of any library, with a name, a signature and a docstring."""
    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = module, doc
    call.__signature__ = public  # type: ignore[attr-defined]
    return checks.of_any_library(call)


def _public(formula: Function, parts: Iterable[Function]) -> list[Parameter]:
    """Return the parameters of the public form of a formula; `parts` have its `**options`."""
    declared = signature(formula).parameters
    by_tokens = "mask" in declared or not TOKENS.isdisjoint(declared)
    public = {"rollout_order": "turn"} | ({} if by_tokens else {"offsets": "group"})
    needed: dict[str, bool] = {}
    for name, parameter in declared.items():
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
            required = name not in _OPTIONAL and parameter.default is Parameter.empty
            needed[public.get(name, name)] = required
    needed |= {"branch": False} if "rollout_order" in declared else {}
    needed |= {"mask": False} if by_tokens else {}
    columns = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if required else None,
            annotation=("Ids" if name in IDS else "Array") + ("" if required else " | None"),
        )
        for name, required in sorted(needed.items(), key=lambda column: not column[1])
    ]
    others = [p for p in declared.values() if p.kind is p.VAR_KEYWORD and not parts]
    ids = [p.replace(annotation="Ids | None") for p in _keywords(formula) if p.name in IDS]
    options = {p.name: p for p in (*_keywords(*parts, formula), *ids)}
    return [*columns, *options.values(), *others]


def _keywords(*functions: Function) -> list[Parameter]:
    """Return the keyword-only parameters of functions, each name once."""
    parameters = [p for function in functions for p in signature(function).parameters.values()]
    return [*{p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}.values()]


@cache
def _options(functions: tuple[Function, ...]) -> dict[str, Option]:
    """Return the options of functions; those that are fields of a recipe have the field's type."""
    options = options_of(functions, FIELDS)
    fields = {**Recipe.model_fields, **Numerics.model_fields}
    for p in _keywords(*functions):
        if p.name in FIELDS:
            kind = _SCOPES if p.name in _SCOPED else fields[p.name].rebuild_annotation()
            options[p.name] = Option(p.name, kind, p.default)
    return options


def _parsed(functions: tuple[Function, ...], name: str, value: Any) -> Any:
    """Return the value of an option of functions; UsageError if it is not of the option's type."""
    option = _options(functions)[name]
    for part in value if isinstance(value, (list, tuple)) else (value,):
        number = not isinstance(part, bool) or isinstance(option.default, bool)
        if not number or (isinstance(part, float) and math.isnan(part)):
            raise UsageError(f"{name}={value!r}: a number is needed")
    try:
        return option.parsed(value, typed=True)
    except ValueError as error:
        raise UsageError(f"{name}={value!r}: {error}") from None


def _of_tokens(
    formula: Function, declared: Collection[str], present: Mapping[str, Any], *, masked: bool
) -> Any:
    """Return what a formula of tokens computes.

    A formula that has a mask leaves out observation tokens itself. Others see the policy tokens
    alone if they have offsets, else all tokens, with 0 on observation tokens.
    """
    numbers = {x: checks.floats(**{x: present[x]})[0] for x in present if x in RESPONSES}
    columns = {x: value for x, value in present.items() if x in TOKENS}
    columns = dict(zip(columns, checks.floats(**columns), strict=True))
    first = next(iter({**columns, **numbers}.values()))
    xp, mask, count = namespace(first), present.get("mask"), 0
    columns |= {x: xp.constant(columns[x]) for x in columns if x in _CONSTANT}
    if "offsets" in present:
        offsets = present["offsets"]
        size = 0 if columns or offsets is None or not len(offsets) else int(offsets[-1])
        tokens = first if columns else xp.zeros(size, first)
        structure: dict[str, Any] = checks.ragged(offsets, mask, tokens)._asdict()
        count = len(structure["offsets"]) - 1
        for x, values in numbers.items():
            checks.per_response(x, values, count)
    else:
        structure = {"mask": checks.mask_of(first, mask)}
    kept, finite = structure["mask"], {x: xp.constant(columns[x]) for x in columns if x in _FINITE}
    checks.finite_tokens(kept, structure.get("offsets"), **finite)
    arguments = {**numbers, **_codes(present, count)[0]}
    if "mask" in declared or not masked:
        arguments |= {x: value for x, value in structure.items() if x in declared}
        return formula(**columns, **arguments)
    if "offsets" in declared:
        policy = positions_of(kept)
        arguments |= {x: column[policy] for x, column in columns.items()}
        result = formula(**arguments, offsets=compact_offsets(kept, structure["offsets"]))
        return checks.each(result, lambda part: xp.placed(part, policy, len(kept)))
    # Masked numbers may be NaN, which a product with 0 passes to gradients.
    result = formula(**{x: xp.where(kept, column, 0.0) for x, column in columns.items()})
    bools = kept.dtype
    return checks.each(result, lambda x: x & kept if x.dtype == bools else xp.where(kept, x, 0.0))


def _of_responses(
    formula: Function, declared: Collection[str], present: Mapping[str, Any], **_: Any
) -> Any:
    """Return what a formula of responses computes, from numbers of numpy in float64."""
    numbers = {x: value for x, value in present.items() if x in RESPONSES}
    name, first = next(iter(numbers.items()))
    (first,) = checks.floats(**{name: first})
    count = len(first) if first.ndim else 0
    columns: dict[str, Any] = {
        x: checks.finite(x, checks.per_response(x, value, count), or_nan=x in _MAY_LACK)
        for x, value in numbers.items()
    }
    codes, sizes = _codes(present, count)
    if "rollout_order" in declared:
        rollout = joint_codes(codes["group"], codes["rollout"])
        columns["rollout_order"] = ranks_of(rollout, columns["turn"], present.get("branch"))
    if "domain_name" in declared:
        names = present["domain_name"]
        names = names.tolist() if hasattr(names, "tolist") else names
        codes["domain_name"] = np.array([*map(str, names)])
    arguments = {x: value for x, value in {**columns, **codes}.items() if x in declared}
    order: Any = slice(None)
    if "offsets" in declared:
        keys = (key for x in arguments.values() for key in (x.T if x.ndim > 1 else (x,)))
        order = canonical_order(codes["group"], *keys)
        arguments = {x: value[order] for x, value in arguments.items()}
        arguments["offsets"] = group_offsets(codes["group"], sizes["group"])
    result = formula(**arguments)

    def as_given(part: Floats) -> Any:
        back = placed(part, order, count) if "offsets" in declared else part
        return namespace(first).astype(like(back, first), first.dtype)

    return checks.each(result, as_given)


def _codes(present: Mapping[str, Any], count: int) -> tuple[dict[str, Integers], dict[str, int]]:
    """Return the codes of ids, and how many there are; None is one id."""
    ids = {x: [0] * count if value is None else value for x, value in present.items() if x in IDS}
    both = {x: checks.codes_of(x, value, count) for x, value in ids.items()}
    return {x: codes for x, (codes, _) in both.items()}, {x: size for x, (_, size) in both.items()}


def ranks_of(rollout: Integers, turn: Floats, branch: Ids | None) -> Integers:
    """Return the ranks of the rows of rollouts, [N]; DataError if two rows are one turn."""
    code = None
    if branch is not None:
        codes, _ = checks.codes_of("branch", branch, len(turn))
        labels = dict.fromkeys(branch.tolist() if hasattr(branch, "tolist") else branch)
        code = name_ranks([*labels])[codes]
    ranks = rollout_ranks(rollout, turn, code)
    first = np.unique(ranks, return_index=True)[1]
    if len(first) < len(ranks):
        row = int(np.setdiff1d(np.arange(len(ranks)), first)[0])
        raise DataError(
            f"turn: row {row} and row {first[ranks[row]]} are both turn {turn[row]:g} of a "
            "rollout; a turn is one row: drop copies, or set branch"
        )
    return ranks


def _shape(**columns: Any) -> tuple[int, int]:
    """Return the shape [N, T] of padded arrays; raises UsageError if one has another one."""
    checks.check_arrays(**columns)
    (name, first), *others = columns.items()
    if first.ndim != 2:  # noqa: PLR2004
        raise UsageError(f"{name} of shape {tuple(first.shape)}: [N, T] is needed")
    for other, column in others:
        if column.shape != first.shape:
            raise UsageError(
                f"{other} of shape {tuple(column.shape)} and {name} of shape {tuple(first.shape)}: "
                "they must be the same"
            )
    return first.shape  # type: ignore[no-any-return]


# Docstrings

_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def _documented(formula: Function, name: str, public: Signature, parts: Iterable[Function]) -> str:
    """Return the docstring of a formula in the words of its public form."""
    head, _, tail = (inspect.getdoc(formula) or "").partition("\nArgs:\n")
    section, *paragraphs = tail.split("\n\n")
    texts = dict(_ARGUMENT.findall("\n".join([*map(_arguments, parts), section])))
    ragged = "offsets" in public.parameters
    texts |= _TEXTS if ragged else {**_TEXTS, "mask": "the same shape; None for all tokens."}
    lines = [f"    {x}: {texts[x]}" for x in public.parameters if x in texts]
    if ragged and "mask" not in signature(formula).parameters and "mask" in public.parameters:
        paragraphs[0] = f"{paragraphs[0].rstrip('.')}. Observation tokens have 0."
    ends = (i for i, text in enumerate(paragraphs) if text.startswith(("Source", ">>>")))
    paragraphs.insert(next(ends, len(paragraphs)), _RAISES)
    doc = "\n\n".join([head.rstrip(), "\n".join(["Args:", *lines]), *paragraphs])
    doc = re.sub(r"Credit of \[([NT])\], the same array twice", r"[\1]", doc)
    doc = re.sub(r"\[N\] codes of", "N ids of", doc).replace(f"{formula.__name__}(", f"{name}(")
    if public.return_annotation == "Array":
        doc = re.sub(r"(?m)^(>>>.*)\.(?:advantages|returns)\b", r"\1", doc)
    if not ragged and "offsets" in signature(formula).parameters:
        doc = re.sub(r"(?m)^(>>>.*)np\.array\(\[0, (\d+)\]\)", r"\1[7] * \2", doc)
    return doc


def _arguments(function: Function) -> str:
    """Return the lines of the arguments in a docstring."""
    return (inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
