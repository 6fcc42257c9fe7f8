"""Files of exports, read back."""

import json
from dataclasses import dataclass, field

import torch


def records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass
class Sample:
    """slime's Sample, as slime/utils/types.py builds it: unknown keys become attributes."""

    group_index: int | None = None
    index: int | None = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    remove_sample: bool = False
    rollout_log_probs: list[float] | None = None
    status: str = "pending"
    train_metadata: dict | None = None

    @staticmethod
    def from_dict(data):
        one = Sample()
        assert data["status"] in {"pending", "completed", "truncated", "aborted", "failed"}
        for key, value in data.items():
            setattr(one, key, value)
        return one


def load_debug_rollout_data(template, rollout_id):
    samples = torch.load(template.format(rollout_id=rollout_id), weights_only=False)["samples"]
    return [Sample.from_dict(sample) for sample in samples]
