"""Write harbor/: a job of four trials by harbor 0.25.0's own models, and what they contain.

    pip install harbor==0.25.0 && python tests/written/make_harbor.py

`Chat` collects the rollout details, `Trajectory` (ATIF 1.8) and `TrialResult` check every field,
and both files are written by the calls of `Terminus2._dump_trajectory` and `Trial._finalize`. No
container runs: the model's answers are those below.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from harbor.llms.base import LLMResponse
from harbor.llms.chat import Chat
from harbor.models.agent.context import AgentContext
from harbor.models.task.id import LocalTaskId
from harbor.models.trajectories import (
    Agent,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    Trajectory,
)
from harbor.models.trial.config import TaskConfig, TrialConfig
from harbor.models.trial.result import AgentInfo, ExceptionInfo, TimingInfo, TrialResult
from harbor.models.verifier.result import VerifierResult
from harbor.utils.trajectory_utils import format_trajectory_json

FOLDER = Path(__file__).parent / "harbor"
START = datetime(2026, 11, 1, 12, tzinfo=UTC)


class Scripted:
    """A model that returns the next of its answers: ids of the prompt, its own, log-probs."""

    def __init__(self, answers: list[LLMResponse]) -> None:
        self.answers = iter(answers)

    async def call(self, **_: object) -> LLMResponse:
        return next(self.answers)


def answer(text: str, prompt: list[int], ids: list[int]) -> LLMResponse:
    log_probs = [-0.1 * (i + 1) - ids[0] / 1000 for i in range(len(ids))]
    return LLMResponse(
        content=text, prompt_token_ids=prompt, completion_token_ids=ids, logprobs=log_probs
    )


def chatted(answers: list[LLMResponse]) -> Chat:
    chat = Chat(Scripted(answers))
    for i in range(len(answers)):
        asyncio.run(chat.chat(f"terminal {i}"))
    return chat


def trajectory(name: str, answers: list[LLMResponse]) -> Trajectory:
    steps = [Step(step_id=1, source="user", message="Make tests pass.")]
    steps += [
        Step(
            step_id=i + 2,
            timestamp=(START + timedelta(seconds=i)).isoformat(),
            source="agent",
            model_name="policy",
            message=one.content,
            observation=Observation(results=[ObservationResult(content=f"$ out {i}")]),
            metrics=Metrics(
                prompt_tokens=len(one.prompt_token_ids),
                completion_tokens=len(one.completion_token_ids),
                prompt_token_ids=one.prompt_token_ids,
                completion_token_ids=one.completion_token_ids,
                logprobs=one.logprobs,
            ),
        )
        for i, one in enumerate(answers)
    ]
    agent = Agent(name="terminus-2", version="2.0.0", model_name="policy")
    return Trajectory(session_id=name, agent=agent, steps=steps)


def trial(number: int, answers: list[LLMResponse], **facts: object) -> dict:
    """Write a trial of task `fix-git`; return what its objects contain."""
    name = f"fix-git__{number}"
    folder = FOLDER / "job" / name
    (folder / "agent").mkdir(parents=True)
    side = facts.pop("subagent", [])
    details = [
        *chatted(answers).rollout_details,
        *(d for x in side for d in chatted([x]).rollout_details),
    ]
    result = TrialResult(
        id=UUID(int=number),
        task_name="fix-git",
        trial_name=name,
        trial_uri=f"file:///jobs/job/{name}",
        task_id=LocalTaskId(path=Path("tasks/fix-git")),
        source="terminal-bench",
        task_checksum="c0ffee",
        config=TrialConfig(task=TaskConfig(path=Path("tasks/fix-git")), trial_name=name),
        agent_info=AgentInfo(name="terminus-2", version="2.0.0"),
        agent_result=AgentContext(rollout_details=details) if answers else None,
        agent_execution=TimingInfo(
            started_at=START, finished_at=START + timedelta(seconds=30 + number)
        ),
        **facts,
    )
    (folder / "result.json").write_text(result.model_dump_json(indent=4))
    if answers:
        text = format_trajectory_json(trajectory(name, answers).to_json_dict())
        (folder / "agent" / "trajectory.json").write_text(text)
    cause = result.exception_info
    return {
        "rollout": str(result.id),
        "reward": (result.verifier_result.rewards or {}).get("reward")
        if result.verifier_result
        else None,
        "reward_valid": result.reward_valid,
        "exception": cause and cause.exception_type,
        "seconds": 30.0 + number,
        "calls": [
            [one.content, one.prompt_token_ids, one.completion_token_ids, one.logprobs]
            for one in [*answers, *side]
        ],
    }


def failed(kind: str, message: str) -> ExceptionInfo:
    return ExceptionInfo(
        exception_type=kind, exception_message=message, exception_traceback="", occurred_at=START
    )


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    prompt = [1, 2, 3]
    first = answer("ls", prompt, [11, 12])
    second = answer("make", [*prompt, 11, 12, 4], [13, 14, 15])
    summary = answer("so far: ls, make", [5, 6], [21, 22])  # of a sub-agent
    afresh = answer("done", [7, 8, 9], [31])  # the history was summarised: a new branch
    wrong = answer("rm", prompt, [41, 42, 43])
    made = [
        trial(1, [first, second, afresh], subagent=[summary],
              verifier_result=VerifierResult(rewards={"reward": 1.0})),
        trial(2, [wrong], verifier_result=VerifierResult(rewards={"reward": 0.0})),
        trial(3, [first], verifier_result=VerifierResult(rewards={"reward": 0.0}),
              exception_info=failed("AgentTimeoutError", "after 31 s")),
        trial(4, [], exception_info=failed("EnvironmentStartTimeoutError", "no sandbox")),
    ]  # fmt: skip
    (FOLDER / "truth.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))


if __name__ == "__main__":
    main()
