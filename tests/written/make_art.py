"""Write art/: groups of trajectories by OpenPipe ART 0.5.23's own writer, and what they contain.

    pip install openpipe_art==0.5.23 && python tests/written/make_art.py

Choices have the ids that vLLM adds with return_token_ids, and the log-probs that ART asks for. The
last group has an exchange captured of the client, as `art.trajectory()` records it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from art.trajectories import (
    ChatCompletionsExchange,
    LegacyHistory,
    PydanticException,
    Trajectory,
    TrajectoryExchanges,
    TrajectoryGroup,
)
from art.utils.trajectory_logging import write_trajectory_groups_parquet
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice

FOLDER = Path(__file__).parent / "art"
FILE = FOLDER / "trajectories" / "train" / "0007.parquet"
ASKED = {"role": "user", "content": "6+7"}
TIME = datetime(2026, 11, 1, tzinfo=UTC)


def choice(
    text: str, prompt: list[int], ids: list[int], finish: str = "stop", *, extra: bool = True
) -> Choice:
    """Return a choice of vLLM; without extra ids only the tokens' names have them."""
    entries = [
        {"token": f"token_id:{x}", "logprob": -0.25 * (i + 1), "bytes": None, "top_logprobs": []}
        for i, x in enumerate(ids)
    ]
    made = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": entries, "refusal": None},
    }
    own = {"prompt_token_ids": prompt, "token_ids": ids} if extra else {}
    return Choice.model_validate(made | own)


def groups() -> list[TrajectoryGroup]:
    first = choice("6+7=", [1, 2, 3], [11, 12])
    second = choice("13", [1, 2, 3, 11, 12, 4], [13], "length")
    aside = choice("note", [8, 9], [21, 22])
    long = Trajectory(
        messages_and_choices=[ASKED, first, {"role": "user", "content": "go on"}, second],
        additional_histories=[LegacyHistory(messages_and_choices=[ASKED, aside])],
        reward=1.0,
        initial_policy_version=6,
        final_policy_version=7,
        metrics={"correct": True},
        metadata={"task": "sum"},
    )
    short = Trajectory(
        messages_and_choices=[ASKED, choice("12", [1, 2, 3], [31, 32, 33])], reward=0.0,
        initial_policy_version=7, final_policy_version=7,
    )  # fmt: skip
    failure = PydanticException(type="TimeoutError", message="no answer", traceback="")
    captured = Trajectory(
        exchanges=TrajectoryExchanges(
            chat_completions=[
                ChatCompletionsExchange(
                    start_time=TIME,
                    end_time=TIME,
                    request={"model": "policy", "messages": [ASKED]},
                    response=ChatCompletion.model_validate(
                        {
                            "id": "c1",
                            "created": 0,
                            "model": "policy",
                            "object": "chat.completion",
                            "choices": [choice("14", [5, 6], [41, 42]).model_dump()],
                        }
                    ),
                )
            ]
        ),
        reward=0.5,
    )
    named = Trajectory(
        messages_and_choices=[ASKED, choice("15", [], [51], extra=False)], reward=0.25
    )
    return [
        TrajectoryGroup([long, short], exceptions=[failure], metadata={"scenario": 4}),
        TrajectoryGroup([captured, named]),
    ]


def calls_of(trajectory: Trajectory) -> list:
    histories = [trajectory.messages_and_choices, *(
        one.messages_and_choices for one in trajectory.additional_histories)]  # fmt: skip
    own = [one for history in histories for one in history if isinstance(one, Choice)]
    own += [x for one in trajectory.exchanges.chat_completions for x in one.response.choices]
    return [
        [
            one.message.content,
            (one.model_extra or {}).get("prompt_token_ids", []),
            [int(x.token.removeprefix("token_id:")) for x in one.logprobs.content],
            [x.logprob for x in one.logprobs.content],
            one.finish_reason,
        ]
        for one in own
    ]


def main() -> None:
    made = groups()
    FILE.parent.mkdir(parents=True, exist_ok=True)
    write_trajectory_groups_parquet(made, FILE)
    truth = [
        {
            "group": str(i),
            "rollout": f"{i}:{j}",
            "reward": one.reward,
            "version": one.initial_policy_version,
            "calls": calls_of(one),
        }
        for i, group in enumerate(made)
        for j, one in enumerate(group.trajectories)
    ]
    (FOLDER / "truth.jsonl").write_text("".join(json.dumps(one) + "\n" for one in truth))


if __name__ == "__main__":
    main()
