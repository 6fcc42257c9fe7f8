"""Cases that call rlpost's Python interface. They write files to the working directory.

The worker of each tree loads this file, with that tree's rlpost; only public names are used.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

INPUTS = Path("../../inputs")
NAMES = (
    "enrich_a_table",
    "enrich_a_frame",
    "facts",
    "advantages_of_several_files",
    "functional_groups",
    "functional_tokens",
    "functional_losses",
    "functional_gradients",
)


def kept(summary: dict, name: str = "summary.json") -> None:
    """Write a summary."""
    Path(name).write_text(json.dumps(summary), encoding="utf-8")


def tensors(**found: object) -> None:
    """Write tensors as lists of numbers, a column each."""
    lists = {name: [one.detach().flatten().double().tolist()] for name, one in found.items()}
    pq.write_table(pa.table(lists), "tensors.parquet")


def recipe():
    import rlpost

    return rlpost.Recipe(
        estimator="gae", kl_coef=0.1, kl_estimator="k3", whiten_advantages=True, advantage_clip=2.0
    )


def enrich_a_table() -> None:
    import rlpost

    table, summary = rlpost.enrich(pq.read_table(INPUTS / "arithmetic.parquet"), recipe())
    pq.write_table(table, "out.parquet")
    kept(summary)


def enrich_a_frame() -> None:
    import polars as pl

    import rlpost

    how = rlpost.preset("verl", estimator="grpo", length_weight=True)
    table, summary = rlpost.enrich(pl.read_parquet(INPUTS / "steps.parquet"), how)
    if not isinstance(table, pa.Table):  # an Arrow table came back before; frames have large lists
        table = table.to_arrow()
        for name in ("advantages", "returns"):
            own = table[name].cast(pa.list_(pa.field("element", pa.float32())))
            table = table.set_column(table.schema.get_field_index(name), name, own)
    pq.write_table(table, "out.parquet")
    kept(summary)


def facts() -> None:
    import rlpost

    for name in ("calculator", "steps"):
        found = rlpost.inspect([str(INPUTS / f"{name}.parquet")], tokens=True)
        kept(found.as_json(), f"{name}.json")


def advantages_of_several_files() -> None:
    import rlpost

    files = sorted(map(str, (INPUTS / "parts").iterdir()))
    kept(rlpost.advantages(files, "out", recipe(), rlpost.Options(device="cpu", workers=2)))


def ragged(name: str):
    """Columns of a file as tensors: those of tokens flat, with offsets."""
    import torch

    table = pq.read_table(INPUTS / f"{name}.parquet")
    tokens = {
        field.name: torch.tensor([x for row in table[field.name].to_pylist() for x in row])
        for field in table.schema
        if pa.types.is_list(field.type)
    }
    lengths = [len(row) for row in table["response_mask"].to_pylist()]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return table, tokens, offsets


def functional_groups() -> None:
    import torch

    from rlpost import functional as F  # noqa: N812

    table, _, offsets = ragged("ragged_groups")
    rewards, groups = torch.tensor(table["reward"].to_pylist()), table["prompt_id"].to_pylist()
    domains = table["domain"].to_pylist()
    counts = (offsets[1:] - offsets[:-1]).float()
    parts = torch.stack([rewards, torch.tensor(table["reward_format"].to_pylist())], 1)
    tensors(
        grpo=F.grpo(rewards, groups),
        grpo_others=F.grpo(rewards.double(), groups, norm_mean="others", norm_std="others"),
        dr_grpo=F.dr_grpo(rewards, groups),
        rloo=F.rloo(rewards, groups),
        opo=F.opo(rewards, counts, groups),
        gpg=F.gpg(rewards, groups, domains),
        grpo_passk=F.grpo_passk(rewards, groups),
        max_rl=F.max_rl(rewards.abs(), groups),
        gdpo=F.gdpo(parts, groups, component_weights=[1.0, 0.5]),
    )


def functional_tokens() -> None:
    import torch

    from rlpost import functional as F  # noqa: N812

    table, tokens, offsets = ragged("multiturn")
    mask, rewards = tokens["response_mask"], torch.tensor(table["reward"].to_pylist())
    placed = F.place_rewards(rewards, offsets, mask)
    credit, returns = F.gae(placed, tokens["values"], offsets, mask, gamma=0.99, lam=0.9)
    discounted = getattr(F, "discounted_returns", None) or F.reinforce  # its name in BASE
    old, infer, ref = (tokens[f"{name}_log_probs"] for name in ("old", "infer", "ref"))
    weights = {
        f"weights_{level}_{name}": tensor
        for level in ("token", "segment", "geometric", "sequence")
        for name, tensor in F.importance_weights(
            old, infer, offsets, mask, level=level, cap=1.1, bounds=(0.5, 2.0)
        )._asdict().items()
    }  # fmt: skip
    sums = {
        how.replace("-", "_"): F.aggregate(credit, offsets, mask, how=how)
        for how in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
    }
    count = len(offsets) - 1
    width = int((offsets[1:] - offsets[:-1]).max())
    padded = torch.zeros(3, count, width)
    for row in range(count):
        begin, end = offsets[row], offsets[row + 1]
        for at, column in enumerate((placed, tokens["values"], mask)):
            padded[at, row, : end - begin] = column[begin:end]
    there = F.padded.gae(padded[0], padded[1], padded[2], gamma=0.99, lam=0.9)
    tensors(
        placed=placed,
        credit=credit,
        returns=returns,
        discounted=discounted(placed, offsets, mask, gamma=0.9),
        spread=F.to_tokens(rewards, offsets, mask),
        whitened=F.whiten(credit, mask),
        **{f"kl_{name}": F.kl(old, ref, mask, kl_estimator=name) for name in ("k1", "k2", "k3")},
        padded_credit=there[0],
        padded_returns=there[1],
        **weights,
        **sums,
    )


def functional_losses() -> None:
    import torch

    from rlpost import functional as F  # noqa: N812

    table, tokens, offsets = ragged("steps")
    rewards = torch.tensor(table["reward"].to_pylist())
    names = ("log_probs", "old_log_probs", "adv_in")
    given = [tokens[name] for name in names]
    found = {}
    for name in (
        "ppo", "gspo", "cispo", "tis", "kimi15", "geo_mean", "sapo", "dppo", "topr", "dppo_tv",
        "dppo_kl", "dro", "clip_cov", "kl_cov",
    ):  # fmt: skip
        made = F.policy_loss(
            *given, offsets, tokens["response_mask"], loss=name, rewards=rewards,
            ref_log_probs=tokens["ref_log_probs"], kl_loss_coef=0.1,
        )  # fmt: skip
        found |= {
            f"{name}_loss": made.loss,
            f"{name}_tokens": made.tokens,
            f"{name}_clip": made.clip,
        }
    tensors(**found)


def functional_gradients() -> None:
    import torch

    from rlpost import functional as F  # noqa: N812

    _, tokens, offsets = ragged("steps")
    mask = tokens["response_mask"]
    found = {}
    for name in ("ppo", "gspo", "cispo", "sapo"):
        logs = tokens["log_probs"].clone().requires_grad_()
        F.policy_loss(
            logs, tokens["old_log_probs"], tokens["adv_in"], offsets, mask, loss=name
        ).loss.backward()
        found[name] = logs.grad
    values = tokens["values"].clone().requires_grad_()
    credit, _ = F.gae(tokens["adv_in"], values, offsets, mask, gamma=0.9)
    F.whiten(credit, mask).square().sum().backward()
    tensors(**found, values=values.grad if values.grad is not None else torch.zeros(1))


def ray_dataset() -> None:
    import ray
    import ray.data

    import rlpost

    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error"
    )
    there = ray.get(ray.remote(lambda: __import__("rlpost").__file__).remote())
    assert there == rlpost.__file__, there
    given = ray.data.from_arrow(
        [pq.read_table(path) for path in sorted((INPUTS / "parts").iterdir())]
    )
    made = rlpost.ray.advantages(given, recipe())
    pq.write_table(pa.concat_tables(ray.get(made.to_arrow_refs())), "out.parquet")
    ray.shutdown()
