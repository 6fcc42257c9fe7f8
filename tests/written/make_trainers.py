"""Write trainers/: dumps of verl, ms-swift, open-instruct by their functions.

    pip download --no-deps verl==0.9.1 ms_swift==4.6.0, unpacked to FOLDER/NAME
    open-instruct at ccb36c5, in FOLDER/NAME
    pip install torch aiofiles && python tests/written/make_trainers.py FOLDER

The packages need GPUs to be imported, so each function that writes a dump is compiled from its
source as it is, with the few names that it reads. What it is called with is below, in `truth.json`
too.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import shutil
import sys
import types
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
import torch

SOURCES, FOLDER = Path(sys.argv[1]), Path(__file__).parent / "trainers"
TEXTS = [("1 + 1 =", "2", 1.0), ("1 + 1 =", "3", 0.0), ("2 + 2 =", "4", 1.0), ("2 + 2 =", "5", 0.5)]
STEP = 7


def own(file: str, *names: str, **given: Any) -> types.SimpleNamespace:
    """The functions and classes of these names in a source file, compiled with what they read."""
    tree = ast.parse((SOURCES / file).read_text())
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name in names
    ]
    module = ast.Module([ast.parse("from __future__ import annotations").body[0], *found], [])
    space = {"os": os, "json": json, "np": np, "torch": torch, "asdict": asdict, **given}
    space |= {"dataclass": dataclass, "logger": logging.getLogger(), "Any": Any, "__name__": "own"}
    space |= {"Generic": Generic, "T": TypeVar("T")}
    sys.modules.setdefault("own", types.ModuleType("own"))  # dataclasses look here
    exec(compile(module, file, "exec"), space)  # noqa: S102 - the package's own source
    return types.SimpleNamespace(**{name: space[name] for name in names})


def verl() -> None:
    inputs, outputs, scores = map(list, zip(*TEXTS, strict=True))
    values = (inputs, outputs, ["2", "2", "4", "4"], scores)
    classic = own("verl/verl/trainer/ppo/ray_trainer.py", "_write_generations")
    extra = {"acc": [True, False, True, False], "request_id": [f"r{i}" for i in range(4)]}
    classic._write_generations(*values, extra, FOLDER / "verl", STEP)
    keys = {"uid": ["a_b_0_0", "a_b_1_0", "c_0_0", "c_0_1"]}  # TransferQueue's keys
    v1 = own("verl/verl/trainer/ppo/v1/trainer_base.py", "_write_generations")
    v1._write_generations(*values, keys, FOLDER / "verl-v1", STEP)


def ms_swift() -> None:
    given = {"is_master": lambda: True, "Queue": list, "dist": torch.distributed,
             "check_json_format": lambda value: value}  # fmt: skip
    for name in ("Literal", "Union", "Dict", "List"):
        given[name] = getattr(__import__("typing"), name)
    writer = own("ms_swift/swift/utils/io_utils.py", "JsonlWriter", **given).JsonlWriter
    inputs, outputs, scores = map(list, zip(*TEXTS, strict=True))
    table = {"prompt": inputs, "completion": outputs}  # as the `log` methods make them
    # GRPOTrainer.log, GKDTrainer.log, Ray's _maybe_log_completions
    grpo = {"step": [str(STEP)] * 4, **table, "accuracy": scores, "format": [0.5] * 4,
            "advantages": [1.0, -1.0, 0.7, -0.7], "num_turns": [1, 1, 2, 2],
            "entropy": [0.1, 0.2, 0.3, 0.4]}  # fmt: skip
    ray = [{"gen_step": STEP, "prompt": prompt, "completion": text, "reward": score}
           for prompt, text, score in TEXTS]  # fmt: skip
    for name, rows in {"grpo": grpo, "gkd": {"step": [str(STEP)] * 4, **table}, "ray": ray}.items():
        writer(str(FOLDER / "ms-swift" / name / "completions.jsonl")).append(rows)


def open_instruct() -> list[dict]:
    """Four samples in two packs; the trainer left sample 2 out."""
    names = ("_save_rollouts", "RolloutRecord", "_get_request_info_for_sample", "pack_sequences",
             "_save_trainer_logprobs", "_prompt_boundaries_from_masks", "_flatten_tensor",
             "_json_default", "reset_position_ids", "PackedSequences")  # fmt: skip
    code = own("open-instruct/open_instruct/rl_utils.py", *names, _rollout_save_lock=Lock())
    queries = [[11, 12], [11, 12], [13], [13]]
    responses = [[21, 22, 23], [24], [25, 26], [27, 28, 29, 30]]
    masks = [[1, 0, 1], [1], [1, 1], [1, 1, 0, 1]]
    engine = [[-0.1 * (i + 1) - j / 100 for i in range(len(x))] for j, x in enumerate(responses)]
    batch = types.SimpleNamespace(queries=queries, scores=[1, 0, 0.5, 1], datasets=["sums"] * 4,
                                  ground_truths=[[1]] * 4)  # fmt: skip
    result = types.SimpleNamespace(responses=responses, finish_reasons=["stop"] * 3 + ["length"],
                                   request_info=None, logprobs=engine)  # fmt: skip
    folder = FOLDER / "open-instruct"
    code._save_rollouts(folder, "run__1", STEP, batch, result, np.array([1, -1, 0, 1]), 2, 0)
    kept = [0, 1, 3]
    of = [[x[i] for i in kept] for x in (queries, responses, masks, engine)]
    packs = code.pack_sequences(of[0], of[1], of[2], 8, 0, of[3], kept, mask_tool_use=True)
    truth = {i: np.linspace(-2, -1, len(responses[i]), dtype=np.float32).tolist() for i in kept}
    rows = []
    for rank, ids in enumerate(packs.query_responses):
        lists = {name: [getattr(packs, name)[rank][None]] for name in (
            "response_masks", "prompt_masks", "attention_masks", "rollout_sample_ids",
            "vllm_logprobs")}  # fmt: skip
        log_probs = torch.full((1, len(ids)), -9.0)
        for i in kept:
            places = (lists["rollout_sample_ids"][0][0] == i) & (lists["prompt_masks"][0][0] == 0)
            if places.any():
                log_probs[0, places] = torch.tensor(truth[i])
        code._save_trainer_logprobs(
            folder, "run__1", STEP, [log_probs[:, 1:]],
            [x[:, 1:] for x in lists["response_masks"]], 1,
            trainer_model_step=STEP, input_token_ids=[ids[None]], token_ids=[ids[None, 1:]],
            prompt_masks=[x[:, 1:] for x in lists["prompt_masks"]],
            attention_masks=[x[:, 1:] for x in lists["attention_masks"]],
            rollout_sample_ids=[x[:, 1:] for x in lists["rollout_sample_ids"]],
            vllm_logprobs=[x[:, 1:] for x in lists["vllm_logprobs"]],
            rank=rank, world_size=2, dp_rank=rank, sp_rank=0,
        )  # fmt: skip
    for i, (query, response, mask) in enumerate(zip(queries, responses, masks, strict=True)):
        rows.append({"prompt": query, "ids": response, "mask": mask if i in kept else None,
                     "old": truth.get(i), "engine": engine[i]})  # fmt: skip
    return rows


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    verl()
    ms_swift()
    truth = {"step": STEP, "texts": TEXTS, "open_instruct": open_instruct()}
    (FOLDER / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    main()
