"""Advantages that a trainer recorded, compared with the computed ones in the pass that writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.display.text import number, plural
from rlpost.kernels.arrays import is_tensor, namespace
from rlpost.kernels.segments import count_true, segment_max
from rlpost.pipeline.columns import content_of
from rlpost.pipeline.output.columns import token_column
from rlpost.pipeline.stages.tokens import inside, partial_mask
from rlpost.recipe.candidates import MOST_CANDIDATES
from rlpost.recipe.input_columns import recorded_advantages
from rlpost.recipe.roles import RECORDED, ROLES

if TYPE_CHECKING:
    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.kernels.arrays import Array
    from rlpost.pipeline.data import Batch
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap

Json = dict[str, Any]
RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""Differences that float32 arithmetic in another order can make, as `rlpost replay` allows them."""
LEAST_SIGN = 0.1  # has another sign than 0; less may be rounding, over the deviation of a group
FLIPPED = 0.01  # of the numbers differ in sign: a warning


def compared_column(source: Source | TableSource, columns: ColumnMap, recipe: Recipe) -> str | None:
    """Return the column of recorded advantages; None if none has numbers."""
    name = recorded_advantages(source, columns, recipe.columns)
    kinds = ("number",) if columns.rows_only else ("number", "floats", "integers")
    return name if name and content_of(source, name) in kinds else None


def compared(batch: Batch, resolved: ResolvedRecipe) -> dict[str, Array]:
    """Return what differs between recorded and computed advantages, in each response, [n] each.

    Policy tokens of kept responses count: how many are `compared`, how many `differs`, how many
    `sign_differs`; and the largest absolute `difference`. Without tokens, kept responses count.
    """
    if resolved.rows_only:
        recorded, computed, mask = (batch.table[name] for name in (RECORDED, "credit", "kept"))
        return _differences(recorded, computed, mask, np.arange(len(mask) + 1))
    computed = token_column(batch, resolved, "advantages")
    return _differences(batch[RECORDED], computed, partial_mask(batch), batch.offsets)


def _differences(
    recorded: Array, computed: Array, mask: Array | None, offsets: Array
) -> dict[str, Array]:
    xp = namespace(recorded)
    difference = abs(recorded - computed)
    known = xp.isfinite(difference) if mask is None else xp.isfinite(difference) & mask
    difference = inside(difference, known)
    largest, count = segment_max(difference, offsets), count_true(known, offsets)
    counts = dict.fromkeys(("differs", "sign_differs"), xp.zeros_like(count))
    if is_tensor(largest) or largest.max(initial=0.0) > ABSOLUTE:  # on the host one looks first
        sizes = abs(inside(recorded, known)), abs(computed)
        wrong = difference > RELATIVE * sizes[1] + ABSOLUTE
        zero = (xp.minimum(*sizes) <= ABSOLUTE) & (xp.maximum(*sizes) > LEAST_SIGN)
        flips = wrong & (zero | (recorded * computed < 0))
        counts = {"differs": count_true(wrong, offsets), "sign_differs": count_true(flips, offsets)}
    return {"compared": count, **counts, "difference": largest}


def flipped(facts: Json) -> bool:
    """Return whether many recorded advantages have another sign than the computed ones."""
    entry = facts.get("recorded_sign_differs", {"all": {"count": 0}})["all"]
    return bool(entry["count"]) and bool(entry["total"] >= FLIPPED * entry["count"])


def verdict(
    source: Source | TableSource, columns: ColumnMap, facts: Json, of: str = "recorded advantages"
) -> str:
    """Return what was compared in one line, with other columns to read if many signs differ."""
    count, differs = (facts["recorded_differs"]["all"][name] for name in ("count", "total"))
    flips = facts["recorded_sign_differs"]["all"]["total"]
    text = f"{of} (`{columns.column(RECORDED)}`): "
    if not differs:
        return text + ("equal" if count else "not compared: no number for a kept token")
    unit = plural("response" if columns.rows_only else "policy token")
    text += f"differ in {differs:,} of {count:,} {unit}, in sign in {flips:,} (largest difference "
    text += f"{number(facts['recorded_difference']['all']['max'])}): rlpost replay finds the recipe"
    if not flipped(facts):
        return text
    used = {*columns.columns.values(), *(x for role in ROLES.values() for x in role.aliases)}
    others = [x for x in source.columns if x not in used]
    others = [f"`{x}`" for x in others if content_of(source, x) == "number"]
    if others and "reward" in columns:
        more = f"; other numbers than `{columns.column('reward')}`: "
        text += more + ", ".join(others[:MOST_CANDIDATES])
    return text
