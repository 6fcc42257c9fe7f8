"""Write verifiers/: episodes by verifiers 0.4.0's own writer, and what its own objects contain.

    pip install verifiers==0.4.0 && python tests/written/make_verifiers.py

Turns are committed by `verifiers.v1.graph`, which makes the nodes and the forks; `write_episode`
appends them to traces.jsonl as an evaluation does.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from verifiers.v1 import graph
from verifiers.v1.episode import (
    EnvInfo,
    GroupInfo,
    PolicySpan,
    TrainRunInfo,
    TrainWorkInfo,
    WireEpisode,
)
from verifiers.v1.trace import ModelCall, VersionInfo, WireTrace
from verifiers.v1.types import (
    AssistantMessage,
    Response,
    SystemMessage,
    ToolMessage,
    TurnTokens,
    UserMessage,
)
from verifiers.v1.utils.trace_store import write_episode

FOLDER = Path(__file__).parent / "verifiers"
START = 1_790_000_000.0  # seconds since 1970: every time stamp is fixed


def new_trace(name: str, task: dict, *, trainable: bool = True, agent: str = "solver") -> WireTrace:
    trace = WireTrace.model_validate(
        {
            "id": name,
            "task": task,
            "agent": {"config": {}, "name": agent, "trainable": trainable},
            "timing": {
                "start": START,
                "agent": {"start": START, "end": START + 12.5},
                "scoring": {"start": START + 12.5, "end": START + 13.0},
            },
        }
    )
    trace.verifiers = VersionInfo(version="0.4.0")
    return trace


def turn(trace: WireTrace, prompt: list, seed: int, finish: str = "stop", sampled: int = 3) -> None:
    """Commit one call: two scaffold tokens and three tokens for each message of the prompt."""
    ids: list[int] = []
    spans, content = [], []
    for message in prompt:
        body = tokens_of(message)
        ids += [2 if message.role == "assistant" else 1, *body]
        spans.append((len(ids) - len(body) - 1, len(ids)))
        content += [False, *[True] * len(body)]
    ids, content = [*ids, 2], [*content, False]  # the generation prompt
    completion = [seed + i for i in range(sampled)]
    message = AssistantMessage(content=f"answer {seed}")
    OWN[f"answer {seed}"] = completion
    pending = graph.prepare_turn(trace, prompt)
    node = pending.commit(
        Response(
            id=f"r{seed}",
            created=0,
            model="policy",
            message=message,
            finish_reason=finish,
            tokens=TurnTokens(
                prompt_ids=ids,
                completion_ids=completion,
                completion_logprobs=[-0.125 * (i + 1) - seed / 1000 for i in range(sampled)],
                message_spans=spans,
                is_content=content,
            ),
        )
    )
    trace.calls.append(ModelCall(node=node, model="policy", finish_reason=finish))
    trace.nodes[node].loss_weights = {"echo": [0.5] * len(trace.nodes[node].token_ids)}


OWN: dict[str, list[int]] = {}


def tokens_of(message) -> list[int]:
    """Return the ids of a message's body: those that were sampled, or made from its text."""
    return OWN.get(message.content) or [10 + ord(x) for x in message.content[:3]]


def answered(seed: int) -> AssistantMessage:
    return AssistantMessage(content=f"answer {seed}")


def episodes() -> list[WireEpisode]:
    task = {"type": "Sum", "data": {"idx": 4, "question": "6 + 7"}, "key": "sum-4", "hash": "h4"}
    system, question = SystemMessage(content="sum"), UserMessage(content="6+7")
    tool = ToolMessage(content="13 ", tool_call_id="c1")
    made = []

    linear = new_trace("linear", task)  # two turns of one conversation
    turn(linear, [system, question], 100)
    turn(linear, [system, question, answered(100), tool], 110, "length")
    linear.record_reward("correct", 1.0)
    linear.record_reward("format", 0.5, 0.2)
    linear.record_metric("num_tools", 1)
    judge = new_trace("judged", task, trainable=False, agent="judge")
    turn(judge, [question], 190)
    judge.record_reward("agreement", 1.0)
    made.append([linear, judge])

    forked = new_trace("forked", task)  # the second turn rewrites the history: a fork
    turn(forked, [system, question], 200)
    turn(forked, [system, question, answered(200), tool], 210)
    turn(forked, [system, UserMessage(content="sum of it")], 220, sampled=2)
    forked.record_reward("correct", 0.0)
    made.append([forked])

    failed = new_trace("failed", task)  # an error after one turn: scoring did not run
    turn(failed, [system, question], 300)
    failed.rewards["correct"] = None
    made.append([failed])

    early = new_trace("early", task)  # an error before the first turn
    early.rewards["correct"] = None
    made.append([early])

    for traces in made:
        for trace in traces:
            for node in trace.nodes:
                node.timestamp = START + 1.0
            if trace.id in ("failed", "early"):
                trace.record_error(TimeoutError(f"sandbox of {trace.id}"))
                trace.errors[-1].traceback = None
            else:
                trace.ok = True
                trace.stop("max_turns" if trace.id == "linear" else "agent_completed")
    return [
        WireEpisode(
            id=f"episode-{traces[0].id}",
            env=EnvInfo(id="sums", name="sums-hard"),
            task=traces[0].task,
            group=GroupInfo(id="g4"),
            run=TrainRunInfo(
                id="run", work=TrainWorkInfo(step=7, policy=PolicySpan(start=5, end=6))
            ),
            ok=all(trace.ok for trace in traces),
            traces=traces,
        )
        for traces in made
    ]


def truth(trace: WireTrace) -> list[dict]:
    """Return what verifiers' own objects contain, a record for each branch."""
    return [
        {
            "rollout": trace.id,
            "branch": branch.index,
            "reward": trace.reward if any(trace.rewards.values()) else None,
            "rewards": {name: x and x.score for name, x in trace.rewards.items()},
            "truncated": trace.is_truncated,
            "failure": trace.last_error.type if trace.last_error else None,
            "turns": sum(node.sampled for node in branch.nodes),
            "token_ids": branch.token_ids,
            "mask": branch.sampled_mask,
            "logprobs": branch.logprobs,
            "loss_weights": branch.loss_weights("echo"),
            "is_content": [x for node in branch.nodes for x in node.is_content],
            "seconds": trace.timing.agent.duration,
        }
        for branch in trace.branches
    ]


def main() -> None:
    made = episodes()
    with tempfile.TemporaryDirectory() as folder:
        for episode in made:
            write_episode(Path(folder), episode)
        FOLDER.mkdir(exist_ok=True)
        shutil.move(Path(folder) / "traces.jsonl", FOLDER / "traces.jsonl")
    branches = [one for episode in made for trace in episode.traces for one in truth(trace)]
    (FOLDER / "truth.jsonl").write_text("".join(json.dumps(one) + "\n" for one in branches))


if __name__ == "__main__":
    main()
