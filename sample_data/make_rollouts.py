"""Generator of the sample data: rollouts of a tiny transformer, in three Parquet files.

One model learns two tasks by imitation. Its training is short, so that only some answers are right.
Then each task trains its own copy with a critic for a few GRPO steps. A step samples from a
bfloat16 copy of the weights (the rollout engine). It scores the responses in float32 (the trainer)
with the policy and with the frozen imitation model, updates the policy, scores again, and writes a
row group. The third file is of the first task; its critic learns faster, and is recorded before and
after each update.

``python sample_data/make_rollouts.py [--out DIR]`` takes about four minutes on one CPU core. It
always writes the same bytes on the same machine with the same library versions.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tasks import (
    VOCABULARY,
    Problem,
    arithmetic_problem,
    arithmetic_rewards,
    calculator,
    calculator_problem,
    calculator_steps,
    decode,
)
from tiny_model import Episode, Limits, Policy, rollout, score
from torch import Tensor
from training import CRITIC_RATE, POLICY_RATE, Batch, imitate, improve, warm_up_critic

SEED = 20250
STEPS, GROUP, DIFFICULTY_SAMPLES = 4, 8, 16
LESSONS, LESSON_SIZE, CALCULATOR_SHARE = 900, 64, 0.35
BEGAN = time.perf_counter()

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A task: its problems, its limits, and how it scores an episode (one row for each turn)."""

    name: str
    description: str
    make: Callable[[np.random.Generator], Problem]
    limits: Limits
    prompts: int
    judge: Callable[[Problem, Episode], list[Row]]
    columns: dict[str, pa.DataType]
    value_rate: float = POLICY_RATE
    """Learning rate of the critic."""


def judge_arithmetic(problem: Problem, episode: Episode) -> list[Row]:
    """Return the reward of the single turn and its components."""
    text = decode(episode.response)
    correct, tidy = arithmetic_rewards(problem, text, episode.turns[0].finish)
    return [{"reward": correct + tidy, "reward_correct": correct, "reward_format": tidy}]


def judge_calculator(problem: Problem, episode: Episode) -> list[Row]:
    """Return the score of each turn; all turns have the outcome of the last as episode_score."""
    texts = [decode(episode.response[turn.start : turn.stop]) for turn in episode.turns]
    steps = calculator_steps(problem, texts)
    return [
        {
            "turn": index,
            "state_id": step.state,
            "step_score": step.score,
            "episode_score": float(steps[-1].score == 1),
            "reward": step.score,
        }
        for index, step in enumerate(steps)
    ]


def list_of(element: pa.DataType) -> pa.DataType:
    """Return a list type whose element has the name that Parquet uses."""
    return pa.list_(pa.field("element", element))


SHARED_COLUMNS = {
    "prompt_id": pa.string(),
    "step": pa.int32(),
    "domain": pa.string(),
    "difficulty": pa.float64(),
    "prompt": pa.string(),
    "response": pa.string(),
    "finish_reason": pa.string(),
    "reward": pa.float64(),
    "reward_baseline": pa.float64(),
    "prompt_tokens": list_of(pa.int32()),
    "response_tokens": list_of(pa.int32()),
    "response_mask": list_of(pa.uint8()),
    "infer_log_probs": list_of(pa.float32()),
    "old_log_probs": list_of(pa.float32()),
    "ref_log_probs": list_of(pa.float32()),
    "log_probs": list_of(pa.float32()),
    "values": list_of(pa.float32()),
    "sum_pi_squared": list_of(pa.float32()),
}
CRITIC_COLUMNS = (
    "prompt_id", "step", "domain", "finish_reason", "reward", "response_tokens", "response_mask",
    "old_log_probs", "values",
)  # fmt: skip
TASKS = (
    Task(
        "arithmetic",
        "Single-turn: sums, differences and products worked by hand. One row is one response.",
        arithmetic_problem,
        Limits(turns=1, turn_tokens=30),
        16,
        judge_arithmetic,
        SHARED_COLUMNS | {"reward_correct": pa.float64(), "reward_format": pa.float64()},
    ),
    Task(
        "calculator",
        "Multi-turn: the model calls a calculator. One row is one turn; the reply has mask 0.",
        calculator_problem,
        Limits(turns=4, turn_tokens=9, tool=calculator),
        8,
        judge_calculator,
        SHARED_COLUMNS
        | {
            "traj_id": pa.string(),
            "turn": pa.int32(),
            "state_id": pa.string(),
            "step_score": pa.float64(),
            "episode_score": pa.float64(),
        },
    ),
    Task(
        "critic",
        "Values of a critic before and after its update, and entropies. One row is one response.",
        arithmetic_problem,
        Limits(turns=1, turn_tokens=30),
        8,
        judge_arithmetic,
        {name: kind for name, kind in SHARED_COLUMNS.items() if name in CRITIC_COLUMNS}
        | {"new_values": list_of(pa.float32()), "entropy": list_of(pa.float32())},
        value_rate=CRITIC_RATE,
    ),
)


def lesson(rng: np.random.Generator) -> list[Problem]:
    """Return a batch of problems of one task for imitation."""
    make = calculator_problem if rng.random() < CALCULATOR_SHARE else arithmetic_problem
    return [make(rng) for _ in range(LESSON_SIZE)]


def distinct_problems(task: Task, rng: np.random.Generator) -> list[Problem]:
    """Return problems for all steps but the last, which repeats those of the first."""
    problems: dict[str, Problem] = {}
    while len(problems) < (STEPS - 1) * task.prompts:
        problem = task.make(rng)
        problems.setdefault(problem.prompt, problem)
    return list(problems.values())


def engine_of(policy: Policy) -> Policy:
    """Return the rollout engine's copy of the weights in bfloat16."""
    return copy.deepcopy(policy).bfloat16()


@dataclass(frozen=True)
class Sample:
    """Episodes, those of a problem one after another, and the scored turns of each."""

    episodes: list[Episode]
    judged: list[list[Row]]

    @property
    def rewards(self) -> list[list[float]]:
        """The rewards of each episode's turns."""
        return [[row["reward"] for row in turns] for turns in self.judged]


def sample(
    engine: Policy, task: Task, problems: Sequence[Problem], *, each: int, greedy: bool = False
) -> Sample:
    """Sample `each` episodes of each problem."""
    posed = [problem for problem in problems for _ in range(each)]
    episodes = rollout(engine, [p.prompt for p in posed], task.limits, greedy=greedy)
    return Sample(episodes, [task.judge(p, e) for p, e in zip(posed, episodes, strict=True)])


def turn_rows(episode: Episode, judged: Sequence[Row], scores: Mapping[str, Tensor]) -> list[Row]:
    """Return a row for each turn of an episode; `scores` start at its second token."""
    rows = []
    for turn, verdict in zip(episode.turns, judged, strict=True):
        span = slice(turn.start, turn.stop)
        context = episode.prompt + episode.response[: turn.start]
        about = slice(len(context) - 1, len(episode.prompt) + turn.stop - 1)
        row = {
            "prompt": decode(context),
            "response": decode(episode.response[span]),
            "finish_reason": turn.finish,
            "prompt_tokens": context,
            "response_tokens": episode.response[span],
            "response_mask": episode.mask[span],
            "infer_log_probs": episode.infer_log_probs[span],
        }
        rows.append(row | verdict | {name: x[about].numpy() for name, x in scores.items()})
    return rows


class Run:
    """GRPO on one task, starting from the imitation model."""

    def __init__(self, task: Task, reference: Policy, rng: np.random.Generator) -> None:
        self.task, self.reference = task, reference
        self.problems = distinct_problems(task, rng)
        self.policy = copy.deepcopy(reference)
        trial = sample(engine_of(reference), task, self.problems, each=DIFFICULTY_SAMPLES)
        failed = np.array([turns[-1] < 0.5 for turns in trial.rewards])
        self.difficulties = failed.reshape(-1, DIFFICULTY_SAMPLES).mean(1).tolist()
        batch = Batch.of(trial.episodes, trial.rewards, group=DIFFICULTY_SAMPLES)
        misfit = warm_up_critic(self.policy, batch)
        log(f"{task.name}: imitation fails {failed.mean():.0%}, critic's mean square {misfit:.3f}")
        value = [*self.policy.value.parameters()]
        others = [p for p in self.policy.parameters() if not any(p is one for one in value)]
        groups = [{"params": others}, {"params": value, "lr": task.value_rate}]
        self.optimizer = torch.optim.AdamW(groups, POLICY_RATE)

    def step(self, step: int) -> list[Row]:
        """Sample, score, update, score again."""
        start = step * self.task.prompts % len(self.problems)
        problems = self.problems[start : start + self.task.prompts]
        engine = engine_of(self.policy)
        greedy = sample(engine, self.task, problems, each=1, greedy=True)
        drawn = sample(engine, self.task, problems, each=GROUP)
        batch = Batch.of(drawn.episodes, drawn.rewards, group=GROUP)
        scores = self.update(batch)
        rows = []
        for index, (episode, judged) in enumerate(zip(drawn.episodes, drawn.judged, strict=True)):
            number = start + index // GROUP
            prompt_id = f"{self.task.name}-{number:02d}"
            shared = {
                "prompt_id": prompt_id,
                "traj_id": f"{prompt_id}/{step}/{index % GROUP}",
                "step": step,
                "domain": self.problems[number].domain,
                "difficulty": self.difficulties[number],
                "reward_baseline": sum(greedy.rewards[index // GROUP]),
            }
            own = {name: matrix[index] for name, matrix in scores.items()}
            rows += [shared | row for row in turn_rows(episode, judged, own)]
        totals = [sum(turns) for turns in drawn.rewards]
        log(f"{self.task.name} step {step}: mean reward {np.mean(totals):.3f}, {len(rows)} rows")
        return rows

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update the policy; return the scores of the batch before and after."""
        with torch.no_grad():
            old, ref = score(self.policy, batch.tokens), score(self.reference, batch.tokens)
        improve(self.policy, self.optimizer, batch, old, ref)
        with torch.no_grad():
            new = score(self.policy, batch.tokens)
        return {
            "old_log_probs": old.log_probs,
            "ref_log_probs": ref.log_probs,
            "log_probs": new.log_probs,
            "values": old.values,
            "new_values": new.values,
            "entropy": old.entropy,
            "sum_pi_squared": old.sum_pi_squared,
        }


def write(run: Run, path: Path) -> None:
    """Run all steps and write each as a row group."""
    about = {
        "description": run.task.description,
        "made_by": f"sample_data/make_rollouts.py, seed {SEED}",
        "vocabulary": json.dumps(VOCABULARY),
    }
    schema = pa.schema(run.task.columns, metadata=about)
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=9) as writer:
        for step in range(STEPS):
            writer.write_table(pa.Table.from_pylist(run.step(step), schema))
    log(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


def log(message: str) -> None:
    """Print a message after the seconds since the start."""
    print(f"{time.perf_counter() - BEGAN:6.1f} s  {message}", flush=True)


def main() -> None:
    """Train by imitation, then write a file for each task."""
    parser = argparse.ArgumentParser(description="Make the sample rollouts.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="output directory")
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)  # so that sums do not depend on the number of cores
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    reference = Policy()
    batches = [lesson(rng) for _ in range(LESSONS)]
    for count, loss in enumerate(imitate(reference, batches), start=1):
        if count % 100 == 0:
            log(f"imitation step {count}: loss {loss:.3f}")
    out.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        write(Run(task, reference, rng), out / f"{task.name}.parquet")


if __name__ == "__main__":
    main()
