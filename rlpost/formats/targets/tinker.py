"""`--to tinker`: a Datum of Tinker's API per response, for its policy losses.

A Datum has the tokens of prompt and response without the last one, and lists that say for each of
them what is predicted: entry t belongs to token t + 1 of the sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.formats.targets.base import ExportTarget, Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.formats.targets.base import ExportColumns, Writable
    from rlpost.formats.targets.rows import Rows


class DatumSink:
    """Writes data as lines, as they come."""

    def __init__(self, files: Sequence[Writable], held: ExportColumns, step: int) -> None:
        del held, step
        self._lines = Lines(files[0])

    def add(self, rows: Rows) -> None:
        """Write a Datum for each row."""
        columns = zip(
            rows.lists("prompt_token_ids"),
            rows.tokens("response_token_ids"),
            rows.where_trained("infer_log_probs"),
            rows.where_trained("advantages"),
            rows.trained(),
            strict=True,
        )
        data = []
        for row, (prompt, response, log_probs, advantages, trained) in enumerate(columns):
            if not len(prompt):
                raise rows.error(
                    row,
                    "the prompt has no tokens, so nothing predicts the first response token; a "
                    "Datum needs at least one: leave the row out, or add the first token",
                )
            data.append(datum(prompt, response, log_probs, advantages, trained))
        self._lines.append(data)

    def finish(self) -> list[str]:
        """Nothing is left."""
        return []


def datum(
    prompt: NDArray[Any],
    response: NDArray[Any],
    log_probs: NDArray[np.float32],
    advantages: NDArray[np.float32],
    trained: NDArray[np.bool_],
) -> dict[str, Any]:
    """Return a Datum as its JSON: lists of P + T - 1 entries for P prompt and T response tokens.

    Log-probs, advantages and weights are 0 for tokens of the prompt, and for response tokens that
    are not trained on. Tinker's importance_sampling and ppo sum ratio · advantage over all tokens.
    """
    tokens = np.concatenate([prompt, response]).astype(np.int64).tolist()
    before = [0.0] * (len(prompt) - 1)
    return {
        "model_input": {"chunks": [{"tokens": tokens[:-1], "type": "encoded_text"}]},
        "loss_fn_inputs": {
            "target_tokens": _tensor(tokens[1:], "int64"),
            "logprobs": _tensor(before + log_probs.tolist(), "float32"),
            "advantages": _tensor(before + advantages.tolist(), "float32"),
            "weights": _tensor(before + trained.astype(np.float32).tolist(), "float32"),
        },
    }


def _tensor(values: list[Any], kind: str) -> dict[str, Any]:
    return {"data": values, "dtype": kind, "shape": [len(values)]}


_ALIGNED = "a Datum has the tokens of prompt and response"
TARGET = ExportTarget(
    name="tinker",
    trains=True,
    title="Datum JSONL for Tinker's forward_backward",
    layout="file",
    suffix=".jsonl",
    fields={
        "prompt_token_ids": "model_input, target_tokens",
        "response_token_ids": "model_input, target_tokens",
        "infer_log_probs": "logprobs",
        "advantages": "advantages",
        "mask": "weights",
        "sample_mask": "weights",
    },
    needs={
        "prompt_token_ids": _ALIGNED,
        "response_token_ids": _ALIGNED,
        "infer_log_probs": "the ratio's denominator is the sampler's log-prob",
        "advantages": "the loss multiplies them with the ratio",
    },
    source="tinker 0.38, types.Datum; tinker-cookbook 0.6.1, rl/data_processing.py",
    open=DatumSink,
    use="tinker.types.Datum of each line of {out}",
    note="Weights are 0 for tokens that are not trained on; so are their advantages, because "
    "importance_sampling and ppo sum over all tokens. These read no weights: leave that entry out.",
)
