"""Golden cases of policy losses: the options of each framework's loss, and numbers of its log."""

from typing import Any

from golden_loss_runs import LossRun, Metrics, engine_weights
from golden_runs import pinned_loss, width

from rlpost.kernels.corrections import reduce_responses
from rlpost.kernels.segments import spread
from rlpost.losses import DUAL, HIGH, LOW, loss_named

# --- ROLL ---------------------------------------------------------------------------------------


def roll(_entry, config, _table) -> list[LossRun]:
    trained, correction = config["actor_train"], config["train_infer_correction"]
    kind = {"vanilla": "pg"}.get(trained.get("pg_variant", "ppo"), trained.get("pg_variant", "ppo"))
    kind = "gspo" if config["importance_sampling"] == "seq" else kind
    options: dict[str, Any] = {}
    if "cispo_epsilon_low" in trained:
        options["pg_clip"] = (trained["cispo_epsilon_low"], trained["cispo_epsilon_high"])
    if "cispo_use_unified_mask" in trained:
        options["loss_options"] = {"mask_clipped": trained["cispo_use_unified_mask"]}
    if kind in ("ppo", "gspo"):
        options["pg_clip"] = config["pg_clip"]
        if config["use_pg_clip_range"]:
            options["pg_clip"] = (config["pg_clip_low"], config["pg_clip_high"])
        options["dual_clip"] = "twice" if config["dual_clip_loss"] else None
    options["aggregation"] = config["loss_agg_mode"]
    options["kl_loss_coef"] = config["kl_loss_coef"] if config["use_kl_loss"] else 0.0
    weigh = None
    if isinstance(correction, dict) and correction["enabled"]:
        weigh = engine_weights(cap=correction["upper_bound"])
    return [LossRun(pinned_loss("roll", loss=kind, **options), roll_metrics, weigh)]


def roll_loss(came, how: str) -> float:
    """The loss; token-mean adds up all cells, observations too, over the policy tokens.

    Advantages of observations are 0, so that only kimi15 has something left there: its square.
    """
    if how != "token-mean":
        return came.loss(how, length=width(came.table) + 1)
    total = came.values.sum()
    if came.run.options.loss == "kimi15":
        total += 0.1 / 2 * came.whole.log_ratio[~came.tokens.mask].square().sum()
    return float(total / came.tokens.mask.sum())


def roll_metrics(came) -> Metrics:
    """Losses by aggregation, and those of its log; shares and ratios there count observations."""
    log = {name.partition("@")[0]: value for name, value in came.log.items()}
    by_mode = log.get("total_loss_by_agg_mode", {})
    ours = {f"loss {how}": (value, roll_loss(came, how)) for how, value in by_mode.items()}
    plain = {
        "actor/pg_loss": came.loss(came.usual),
        "actor/kl_loss": came.loss(came.usual, came.kl),
    }
    return ours | {name: (log[name], value) for name, value in plain.items() if name in log}


# --- verl ----------------------------------------------------------------------------------------


def verl(entry, config, _table):
    kind = entry["function"].rpartition("compute_policy_loss_")[2]
    options = {"pg_clip": (config["clip_ratio_low"], config["clip_ratio_high"])}
    if kind == "vanilla":
        options["dual_clip"] = config["clip_ratio_c"]
    if kind == "sapo":
        options["loss_options"] = {name: config[name] for name in ("tau_pos", "tau_neg")}
    capped = config["rollout_is"] and float(config["rollout_is"].rpartition(" ")[2])
    loss = pinned_loss("verl", loss="ppo" if kind == "vanilla" else kind, **options)
    return [LossRun(loss, verl_metrics, capped and engine_weights(cap=capped, clamp=20.0))]


def verl_metrics(came) -> Metrics:
    log, fixed = came.log, came.run.options.loss in ("gspo", "sapo", "geo_mean")
    found = {
        f"loss {how}": (value, came.loss(came.usual if fixed else how, length=width(came.table)))
        for how, value in log["pg_loss_by_agg_mode"].items()
    }
    if "actor/pg_clipfrac" not in log or came.run.options.loss == "geo_mean":
        return found  # verl counts log ratios outside on the side that counts, or not
    log_ratio, clipped = came.tokens.log_ratio, (came.share(LOW, HIGH), came.share(DUAL))
    if came.run.options.loss != "gspo":
        log_ratio = log_ratio.clamp(-20, 20)
    names = ("actor/pg_clipfrac", "actor/pg_clipfrac_lower")
    found |= {name: (log[name], share) for name, share in zip(names, clipped, strict=True)}
    return found | {"ppo_kl": (log["actor/ppo_kl"], came.mean(-log_ratio))}


# --- OpenRLHF ------------------------------------------------------------------------------------


def openrlhf(_entry, config, _table):
    options = {
        "loss": config.get("policy_loss_type", "ppo"),
        "pg_clip": (config["clip_eps_low"], config["clip_eps_high"]),
        "dual_clip": config.get("dual_clip"),
    }
    weigh = None
    if config.get("enable_vllm_is_correction"):
        low, high = config["vllm_is_truncated_threshold"]
        kind = config.get("vllm_is_correction_type", "tis")
        weigh = OPENRLHF_WEIGHTS[kind](low, high)
    return [LossRun(pinned_loss("openrlhf", **options), openrlhf_metrics, weigh)]


def of_kept_responses(low, high):
    """Plain weights of responses whose geometric mean is in range."""

    def weigh(tokens):
        logs = tokens.old - tokens.infer
        means = reduce_responses(logs, tokens.mask, tokens.offsets, level="geometric").exp()
        return logs.exp() * spread((means >= low) & (means <= high), tokens.offsets)

    return weigh


OPENRLHF_WEIGHTS = {
    "tis": lambda low, high: engine_weights(floor=low, cap=high),
    "icepop": lambda low, high: engine_weights(bounds=(low, high)),
    "seq-mask-tis": of_kept_responses,
}


def openrlhf_metrics(came) -> Metrics:
    log, tokens = came.log, came.tokens
    found = {
        "loss": (log["loss"], came.loss(came.usual)),
        "loss_seq_mean": (log["loss_seq_mean"], came.loss("seq-mean-token-mean")),
        "clip_ratio": (log["clip_ratio"], came.share(LOW, HIGH)),
        "ppo_kl": (log["ppo_kl"], came.mean(-tokens.log_ratio)),
    }
    if log["vllm_kl"] is not None:
        found["vllm_kl"] = (log["vllm_kl"], came.mean(tokens.infer - tokens.old))
    return found


# --- TRL -----------------------------------------------------------------------------------------


def trl(_entry, config, _table):
    kind = "gspo" if config["level"] == "sequence" else config["loss_type"]
    low = None if kind == "cispo" else config["epsilon_low"]
    options: dict[str, Any] = {"pg_clip": (low, config["epsilon_high"])}
    if kind == "sapo":
        taus = config["sapo_temperatures"]
        options["loss_options"] = dict(zip(("tau_pos", "tau_neg"), taus, strict=True))
    options |= {"dual_clip": config["delta"], "kl_loss_coef": config["beta"]}
    options |= {"kl_loss_ratio": config["use_bias_correction_kl"]}
    loss = pinned_loss("trl", loss=kind, **options)
    return [LossRun(loss, trl_metrics, with_kl=True)]


def trl_metrics(came) -> Metrics:
    length, found = width(came.table), {}
    for kind, value in came.log["loss_by_loss_type"].items():
        options = pinned_loss("trl", loss=kind)
        how = options.aggregation or loss_named(options.loss).aggregation
        rows = {"count_rows": options.agg_rows, "norm": options.agg_norm}
        found[f"loss {kind}"] = (value, came.loss(how, length=length, **rows))
    return found


# --- open-instruct, slime ------------------------------------------------------------------------


def openinstruct(_entry, config, _table):
    kind = "ppo" if config["loss_fn"] == "dapo" else config["loss_fn"]
    low = config["clip_lower"] if kind == "ppo" else None
    options = {"pg_clip": (low, config["clip_higher"])}
    weigh = engine_weights(clamp=10.0, clamp_at="token", cap=2.0)
    loss = pinned_loss("open-instruct", loss=kind, **options)
    return [LossRun(loss, openinstruct_metrics, weigh)]


def openinstruct_metrics(came) -> Metrics:
    log = came.log
    return {
        "loss": (log["loss"], came.loss(came.usual)),
        "clipfrac": (log["clipfrac"], came.share(LOW, HIGH)),
    }


def slime(entry, config, _table):
    kind = "cispo" if "cispo" in entry["function"] else loss_of_slime(config)
    options = {
        "pg_clip": (config["eps_clip"], config["eps_clip_high"]),
        "dual_clip": config.get("eps_clip_c"),
    }
    return [LossRun(pinned_loss("slime", loss=kind, **options))]


def loss_of_slime(config) -> str:
    """gspo has the same function as ppo; bounds this narrow are for ratios of responses."""
    return "gspo" if config["eps_clip_high"] < 0.01 else "ppo"


# --- prime-rl ------------------------------------------------------------------------------------


def primerl(entry, config, _table):
    kind = PRIMERL[entry["function"].rpartition(".")[2]]
    options = {"square_coef": config["kl_tau"]} if "kl_tau" in config else {}
    if kind == "ipo" and "ipo_threshold" in config:
        options["prob_mask"] = config["ipo_threshold"]
    elif kind == "dppo":
        options["prob_mask"] = f"{config['dppo_mask_low']}:{config['dppo_mask_high']}"
    elif "dppo_mask_low" in config:
        options["prob_mask"] = config["dppo_mask_low"]
    loss = pinned_loss("prime-rl", loss=kind, loss_options=options)
    return [LossRun(loss, primerl_metrics)]


PRIMERL = {"default_loss_fn": "dppo", "ipo_loss_fn": "ipo", "ref_kl_loss_fn": "ref_kl"}


def primerl_metrics(came) -> Metrics:
    log, stop = came.log["metrics_row0"], int(came.tokens.offsets[1])
    clip = came.surrogate.clip[:stop][came.tokens.mask[:stop]]
    ours = {"is_masked": clip > 0, "is_masked_low": clip == LOW, "is_masked_high": clip == HIGH}
    shares = {name: float(x.double().mean().nan_to_num(0.0)) for name, x in ours.items()}
    return {name: (log[name], share) for name, share in shares.items() if name in log}


RULES = {
    "verl": verl,
    "openrlhf": openrlhf,
    "trl": trl,
    "openinstruct": openinstruct,
    "slime": slime,
    "primerl": primerl,
    "roll": roll,
}


def losses(entry, config, table) -> list[LossRun]:
    """The rule of all entries with a policy loss."""
    return RULES[entry["peer"]](entry, config, table)
