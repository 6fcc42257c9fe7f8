"""Message graphs of verifiers v1: from nodes to branches, and their lists per response token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import DataError
from rlpost.formats.layout import check_length, mask_of, numbers, padded, response_start, scattered
from rlpost.formats.records import record_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.layout import Lists
    from rlpost.formats.records import Record


LISTS = {
    "logprobs": "infer_log_probs",
    "trainer_logprobs": "old_log_probs",
    "reference_logprobs": "ref_log_probs",
    "entropies": "entropy",
    "advantages": "dumped_advantages",
}
"""Field of a node, compact over its mask -> column."""

OWN_RATIO = (
    "prime-rl writes its trainer's log-probs once, as old_log_probs; its own ratio is theirs "
    "against the engine's: rlpost loss --map log_probs=old_log_probs --map "
    "old_log_probs=infer_log_probs"
)
"""Why a dump of prime-rl has no `log_probs`, and what serves."""


def branches(trace: Record) -> Iterator[tuple[int, list[Record]]]:
    """Each path from a root to a leaf, as the leaf's number and its nodes from the root on.

    A leaf that is an attempt to compact the conversation counts only if the conversation went on
    from it.

    Raises:
        DataError: a node is no object, or its parent is none of the nodes before it.
    """
    nodes = [record_of(f"{trace.where}, node {i}", x) for i, x in enumerate(trace.array("nodes"))]
    parents = [_parent(node, place) for place, node in enumerate(nodes)]
    inner = {*parents}
    accepted = {link.get("node") for node in nodes for link in _links(node, "compaction")}
    for number, leaf in enumerate(place for place in range(len(nodes)) if place not in inner):
        if any(_links(nodes[leaf], "compaction_attempt")) and leaf not in accepted:
            continue
        path: list[Record] = []
        place: int | None = leaf
        while place is not None:
            path.append(nodes[place])
            place = parents[place]
        yield number, path[::-1]


def _parent(node: Record, place: int) -> int | None:
    if not node.has("parent"):
        return None
    parent = node.whole("parent")
    if not 0 <= parent < place:
        raise DataError(f"{node.where}: its parent is {parent}; a node before it is needed")
    return parent


def _links(node: Record, kind: str) -> list[dict[str, Any]]:
    links = node.fields.get("semantic_parents") or []
    return [link for link in links if isinstance(link, dict) and link.get("type") == kind]


def branch_tokens(nodes: list[Record]) -> Lists | None:
    """A branch's lists, one entry per response token, and its ids; None if nothing was sampled.

    Raises:
        DataError: a node's mask does not fit its tokens, or a compact list its mask.
    """
    ids = [numbers(node.where, "token_ids", node.get("token_ids")) for node in nodes]
    masks = [mask_of(node.where, "mask", node.get("mask")) for node in nodes]
    for node, tokens, mask in zip(nodes, ids, masks, strict=True):
        check_length(node.where, "mask", mask, len(tokens), "token_ids")
    whole = np.concatenate(masks) if masks else np.zeros(0, np.uint8)
    if not whole.any():
        return None
    lists = {}
    for name, column in LISTS.items():
        if any(node.fields.get(name) for node in nodes):
            lists[column] = np.concatenate(
                [_spread(node, name, mask) for node, mask in zip(nodes, masks, strict=True)]
            )
    tokens = np.concatenate(ids)
    where = nodes[-1].where
    cut = padded(where, whole, {**lists, "response_token_ids": tokens}, len(tokens))
    return {**cut, "prompt_token_ids": tokens[: response_start(whole)]}


def _spread(node: Record, name: str, mask: Any) -> Any:
    """A node's compact list over all its tokens; 0 where it has none."""
    if not node.fields.get(name):
        return np.zeros(len(mask))
    array = numbers(node.where, name, node.get(name))
    check_length(node.where, name, array, int(mask.sum()), "the mask's count of ones")
    return scattered(mask, array)


def texts(nodes: list[Record]) -> tuple[str, str]:
    """The text of the messages before the first sampled one, and from it on."""
    first = next((i for i, node in enumerate(nodes) if node.fields.get("sampled")), len(nodes))
    contents = [_content(node.fields.get("message")) for node in nodes]
    return "\n".join(contents[:first]), "\n".join(contents[first:])


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in parts if isinstance(text, str))
    return content if isinstance(content, str) else ""
