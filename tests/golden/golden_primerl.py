"""Golden cases of prime-rl: the recipe of each algorithm that scores a group."""

from golden_runs import Runs, run, same

LENGTHS = ("num_output_tokens_weight", "num_input_tokens_weight", "num_turns_weight")


def outcome(estimator, batch="all"):
    def rule(_entry, config, _table) -> Runs:
        penalty = config.get("length_penalty")
        options = {
            "group_length_penalty": [penalty[name] for name in LENGTHS] if penalty else None,
            "ema_decay": config.get("decay"),
            "episode_domains": config.get("episode_agents"),
        }
        columns, numerics = same("advantages"), {"batch": batch}
        return [run(columns, preset="prime-rl", estimator=estimator, numerics=numerics, **options)]

    return rule


RULES = [
    ("primerl", "*.GRPOAlgorithm.score_group", outcome("grpo")),
    (
        "primerl",
        "*.HierarchicalGRPOAlgorithm.score_group",
        outcome("hierarchical_grpo", batch="step"),
    ),
    ("primerl", "*.MaxRLAlgorithm.score_group", outcome("max_rl")),
    ("primerl", "*.RAEAlgorithm.score_group", outcome("rae")),
]
