"""Golden cases of prime-rl: the recipe of each algorithm that scores a group."""

from golden_runs import Runs, run, same

PRIME = {"batch": "all", "empty": "leave_out"}
LENGTHS = ("num_output_tokens_weight", "num_input_tokens_weight", "num_turns_weight")


def outcome(estimator, **numerics):
    def rule(_entry, config, _table) -> Runs:
        penalty = config.get("length_penalty")
        options = {
            "group_length_penalty": [penalty[name] for name in LENGTHS] if penalty else None,
            "ema_decay": config.get("decay", 0.9),
            "episode_domains": config.get("episode_agents", ()),
        }
        made = {**PRIME, **numerics}
        return [run(same("advantages"), estimator=estimator, numerics=made, **options)]

    return rule


RULES = [
    ("primerl", "*.GRPOAlgorithm.score_group", outcome("dr_grpo")),
    (
        "primerl",
        "*.HierarchicalGRPOAlgorithm.score_group",
        outcome("hierarchical_grpo", batch="step"),
    ),
    ("primerl", "*.MaxRLAlgorithm.score_group", outcome("max_rl")),
    ("primerl", "*.RAEAlgorithm.score_group", outcome("rae", rae_order="group")),
]
