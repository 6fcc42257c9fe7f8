"""What to do about each cause of a difference between rollout engine and trainer."""

from __future__ import annotations

from typing import NamedTuple


class Remedy(NamedTuple):
    """What to do, and the options of frameworks that do it."""

    advice: str
    options: tuple[str, ...] = ()


REMEDIES = {
    "temperature": Remedy(
        "compute both log-probs at the temperature that tokens are sampled at",
        (
            "vLLM `logprobs_mode=processed_logprobs`", "verl `rollout.temperature`",
            "TRL `temperature`", "slime `--rollout-temperature`",
        ),
    ),
    "truncated-sampling": Remedy(
        "sample from the whole vocabulary, or replay the sampling mask in the trainer",
        ("`top_p=1`, `top_k=-1`, `min_p=0`", "vLLM `return_sampling_mask`"),
    ),
    "stale-weights": Remedy(
        "bound the policy's age, or correct it with --is-weight",
        (
            "verl `async_training.staleness_threshold`", "prime-rl `max_off_policy_steps`",
            "AReaL `max_head_offpolicyness`",
        ),
    ),
    "failed-sync": Remedy(
        "compare checksums of the weights on both sides after each update, restart engines that "
        "are behind, and train in the engine's precision: small float32 updates round away in "
        "bfloat16",
        (
            "vLLM `POST /weight_checker`", "SGLang `POST /weights_checker`",
            "slime `--check-weight-update-equal`", "TRL `bf16=True`",
        ),
    ),
    "precision": Remedy(
        "use one precision on both sides, and float32 for logits and log-softmax; float16 has 8 "
        "times finer steps than bfloat16",
        ("vLLM `dtype`", "NeMo-RL `policy.precision`"),
    ),
    "shift": Remedy(
        "shift one column by one token: the first engine log-prob is of the first sampled token"
    ),
    "template": Remedy(
        "send the engine's token ids to the trainer instead of text, and use one BOS and one chat "
        "template",
        (
            "vLLM and SGLang `--chat-template`",
            "verl `actor_rollout_ref.model.custom_chat_template`",
            "prime-rl `tokenizer.chat_template`", "NeMo-RL `policy.tokenizer.chat_template`",
        ),
    ),
    "few-tokens": Remedy(
        "look at the tokens that differ most: replay the routing of experts, compare kernels and "
        "retokenised text, or mask the tokens with --is-mask",
        ("verl `router_replay.mode`", "slime `--use-rollout-routing-replay`"),
    ),
    "other": Remedy("look at the tokens that differ most, and compare both sides on one prompt"),
}  # fmt: skip
"""By the name of the cause."""
