"""What to do about each cause of a difference between rollout engine and trainer."""

REMEDIES = {
    "fill-value": "write the log-probs of these tokens, or set their mask to 0: a fill value is no "
    "log-prob",
    "shift": "shift one column by one token: the first engine log-prob is of the first sampled "
    "token",
    "few-tokens": "look at the tokens that differ most: replay the routing of experts (verl "
    "`router_replay.mode`, slime `--use-rollout-routing-replay`), compare kernels and retokenised "
    "text, or mask the tokens with --is-mask",
    "truncated-sampling": "sample from the whole vocabulary (`top_p=1`, `top_k=-1`, `min_p=0`), or "
    "replay the sampling mask in the trainer (vLLM `return_sampling_mask`)",
    "temperature": "compute both log-probs at the temperature that tokens are sampled at (vLLM "
    "`logprobs_mode=processed_logprobs`, verl `rollout.temperature`, TRL `temperature`, slime "
    "`--rollout-temperature`)",
    "stale-weights": "bound the policy's age (verl `async_training.staleness_threshold`, prime-rl "
    "`max_off_policy_steps`, AReaL `max_head_offpolicyness`), or correct it with --is-weight",
    "failed-sync": "compare checksums of the weights on both sides after each update (vLLM `POST "
    "/weight_checker`, SGLang `POST /weights_checker`, slime `--check-weight-update-equal`), "
    "restart engines that are behind, and train in the engine's precision (TRL `bf16=True`): small "
    "float32 updates round away in bfloat16",
    "template": "send the engine's token ids to the trainer instead of text, and use one BOS and "
    "one chat template (vLLM and SGLang `--chat-template`, verl "
    "`actor_rollout_ref.model.custom_chat_template`, prime-rl `tokenizer.chat_template`, NeMo-RL "
    "`policy.tokenizer.chat_template`)",
    "last-token": "compare how both sides end a response: the stop token, the end of the chat "
    "template, and options that change its probability (`min_tokens`, `ignore_eos`, a logit bias)",
    "precision": "use one precision on both sides (vLLM `dtype`, NeMo-RL `policy.precision`), and "
    "float32 for logits and log-softmax; float16 has 8 times finer steps than bfloat16",
    "other": "look at the tokens that differ most, and compare both sides on one prompt",
}
"""By the name of the cause, with the options of frameworks that do it."""
