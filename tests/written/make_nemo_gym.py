"""Write nemo_gym/: rollouts by NeMo-Gym 0.4.0's own collection, failures beside them.

    pip install nemo-gym==0.4.0 && python tests/written/make_nemo_gym.py

`RolloutCollectionHelper` writes rollouts.jsonl and rollouts_failures.jsonl; the answers of the
agent server, which no run of this script starts, are those below, checked by NeMo-Gym's models.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from pathlib import Path

from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.openai_utils import (
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseOutputMessageForTraining,
)
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper

FOLDER = Path(__file__).parent / "nemo_gym"


class Verified(BaseVerifyResponse):
    """A response of an agent such as anyterminal_agent's."""

    mask_sample: bool = False
    failure_reason: str | None = None


def tokens(prompt: list[int], ids: list[int]) -> dict:
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": ids,
        "generation_log_probs": [-0.125 * (i + 1) for i in range(len(ids))],
    }


def message(
    text: str, prompt: list[int], ids: list[int]
) -> NeMoGymResponseOutputMessageForTraining:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return NeMoGymResponseOutputMessageForTraining(
        id="m", content=content, role="assistant", status="completed", type="message",
        **tokens(prompt, ids),
    )  # fmt: skip


def call(prompt: list[int], ids: list[int]) -> NeMoGymResponseFunctionToolCallForTraining:
    return NeMoGymResponseFunctionToolCallForTraining(
        arguments='{"x": 6}', call_id="c", name="add", type="function_call", **tokens(prompt, ids)
    )


def answer(reward: float, output: list, **facts: object) -> dict:
    response = NeMoGymResponse(
        id="r", created_at=0.0, model="policy", object="response", output=output,
        parallel_tool_calls=True, tool_choice="auto", tools=[],
        incomplete_details=facts.pop("incomplete", None),
    )  # fmt: skip
    asked = {"input": [{"role": "user", "content": "6+7", "type": "message"}]}
    own = Verified(responses_create_params=asked, response=response, reward=reward, **facts)
    return own.model_dump(mode="json")


def answers() -> list[tuple[int, int, dict]]:
    prompt = [1, 2, 3]
    tool = NeMoGymFunctionCallOutput(call_id="c", output="13", type="function_call_output")
    two = [call(prompt, [11, 12]), tool, message("13", [*prompt, 11, 12, 4], [13, 14])]
    failed = {"response": None, "reward": 0.0, "_ng_failure_class": "sandbox_error",
              "error_message": "no box"}  # fmt: skip
    return [
        (0, 0, answer(1.0, two)),
        (0, 1, answer(0.0, [message("14", prompt, [21])], failure_reason="wrong_answer")),
        (0, 2, answer(0.0, [message("1", prompt, [31, 32])], mask_sample=True,
                      incomplete={"reason": "max_output_tokens"})),
        (0, 3, failed),
        (0, 3, failed | {"_ng_failure_terminal": True}),
        (1, 0, answer(0.5, [message("9", [5, 6], [41])])),
    ]  # fmt: skip


class Scripted(RolloutCollectionHelper):
    """The collection with the answers above in place of those of servers."""

    def run_examples(self, *_args, **_more):
        async def one(task: int, rollout: int, result: dict):
            row = {"_ng_task_index": task, "_ng_rollout_index": rollout,
                   "agent_ref": {"name": "calculator"}}  # fmt: skip
            return row, dict(result)

        return [one(*x) for x in answers()]

    def _preprocess_rows_from_config(self, *_):
        return [{"agent_ref": {"name": "calculator"}} for _ in answers()]


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        config = RolloutCollectionConfig(
            input_jsonl_fpath="none", output_jsonl_fpath=f"{name}/rollouts.jsonl",
            agent_name="calculator", disable_aggregation=True, upload_rollouts_to_wandb=False,
        )  # fmt: skip
        asyncio.run(Scripted().run_from_config(config))
        FOLDER.mkdir()
        for file in ("rollouts.jsonl", "rollouts_failures.jsonl"):
            shutil.move(Path(name) / file, FOLDER / file)
    truth = [
        {
            "task": str(task),
            "rollout": f"{task}:{rollout}",
            "reward": one["reward"],
            "masked": one["mask_sample"],
            "calls": [
                [x["prompt_token_ids"], x["generation_token_ids"], x["generation_log_probs"]]
                for x in one["response"]["output"]
                if "generation_token_ids" in x
            ],
        }
        for task, rollout, one in answers()
        if one["response"]
    ]
    (FOLDER / "truth.jsonl").write_text("".join(json.dumps(one) + "\n" for one in truth))


if __name__ == "__main__":
    main()
