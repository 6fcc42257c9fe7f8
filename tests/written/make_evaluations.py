"""Write evaluations/: a results.jsonl by verifiers 0.1.9, and logs by inspect_ai 0.3.285.

    pip install verifiers==0.1.9 && python tests/written/make_evaluations.py verifiers
    pip install inspect_ai==0.3.285 && python tests/written/make_evaluations.py inspect_ai

verifiers' `save_rollout_results` writes what an evaluation returned; inspect_ai runs a task with
its scripted model. The logs have the times and identifiers of their run.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "evaluations"


def verifiers() -> None:
    import verifiers as vf  # noqa: PLC0415 - each needs its own package
    from verifiers.utils.eval_utils import save_rollout_results  # noqa: PLC0415

    def step(name: str, prompt: list[int], ids: list[int], text: str) -> dict:
        tokens = {
            "prompt_ids": prompt, "prompt_mask": [0] * len(prompt), "completion_ids": ids,
            "completion_mask": [1] * len(ids), "completion_logprobs": [-0.25] * len(ids),
            "overlong_prompt": False, "is_truncated": False,
        }  # fmt: skip
        said = [{"role": "assistant", "content": text}]
        return {"prompt": [], "completion": said, "tokens": tokens, "reward": None,
                "advantage": None, "is_truncated": False, "trajectory_id": name}  # fmt: skip

    states, rewards = [], [1.0, 0.0, 0.5, 0.0]
    for i in range(4):
        steps = [step(f"t{i}", [1, 2], [3, 4], "6 x 7"), step(f"t{i}", [1, 2, 3, 4, 5], [6], "42")]
        state = vf.State(input={})
        state |= {
            "timing": {"generation_ms": 10.0, "scoring_ms": 1.0, "total_ms": 11.0},
            "trajectory": [] if i == 3 else steps, "trajectory_id": f"t{i}",
            "is_truncated": i == 1, "error": vf.SandboxError("no box") if i == 3 else None,
        }  # fmt: skip
        states.append(state)
    question = [{"role": "user", "content": "What is 6 x 7?"}]
    answer = [{"role": "assistant", "content": "42"}]
    save_rollout_results({
        "prompt": [question] * 4, "completion": [answer] * 4, "answer": ["42"] * 4,
        "state": states, "task": ["sums"] * 4, "info": [{}] * 4, "example_id": [0, 0, 1, 1],
        "reward": rewards, "metrics": {"correct": rewards, "num_turns": [2.0, 2.0, 2.0, 0.0]},
        "stop_conditions": [None] * 4, "is_truncated": [False, True, False, False],
        "metadata": {
            "env_id": "sums", "env_args": {}, "model": "policy", "base_url": "", "num_examples": 2,
            "rollouts_per_example": 2, "sampling_args": {}, "date": "", "time_ms": 0.0,
            "avg_reward": 0.375, "avg_metrics": {},
            "state_columns": ["trajectory", "trajectory_id", "is_truncated"],
            "path_to_save": FOLDER / "verifiers",
        },
    })  # fmt: skip


def inspect_ai() -> None:
    import inspect_ai as package  # noqa: PLC0415 - as above
    from inspect_ai.dataset import Sample  # noqa: PLC0415
    from inspect_ai.model import ModelOutput, ModelUsage, get_model  # noqa: PLC0415
    from inspect_ai.scorer import includes, match  # noqa: PLC0415

    samples = [Sample(id=i, input=f"What is {i} x 7?", target=str(7 * i)) for i in (6, 7)]
    for kind in ("json", "eval"):
        answers = (("42", "stop"), ("43", "stop"), ("49", "stop"), ("it is 4", "max_tokens"))
        outputs = [ModelOutput.from_content("mockllm/model", *answer) for answer in answers]
        for output in outputs:
            output.usage = ModelUsage(input_tokens=9, output_tokens=4, total_tokens=13)
        (log,) = package.eval(
            package.Task(samples, scorer=[match(), includes()], name="products"),
            model=get_model("mockllm/model", custom_outputs=outputs), epochs=2,
            log_dir=str(FOLDER / "new"), log_format=kind, max_samples=1, display="none",
        )  # fmt: skip
        Path(log.location).rename(FOLDER / f"inspect_ai.{kind}")
    (FOLDER / "new").rmdir()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    {"verifiers": verifiers, "inspect_ai": inspect_ai}[sys.argv[1]]()
