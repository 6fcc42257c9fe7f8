"""Live comparison: a preset against the framework that is installed, function by function.

A framework is a module of this room with a `PEER`: the cases, each of which computes the same
numbers twice, by the framework's own functions on padded tensors and by rlpost's pipeline on a
table with the preset. `rlpost presets --verify NAME` and `tests/peers` run the same cases.
"""

from __future__ import annotations

from importlib import import_module

from rlpost.analysis.peers.base import Outcome, Peer, PeerCase, Verdict, run
from rlpost.errors import UsageError
from rlpost.recipe.presets import source_of

__all__ = ["PEERS", "Outcome", "Peer", "PeerCase", "Verdict", "peer_of", "verify"]

PEERS = ("trl", "verl")
"""Presets with a live comparison; the module of each has its name, with underscores."""


def peer_of(name: str) -> Peer:
    """Return the comparison of a preset; raises UsageError if there is none."""
    if name not in PEERS:
        source = source_of(name)
        raise UsageError(
            f"--verify {name}: only {' and '.join(PEERS)} are compared with the installed package; "
            f"rlpost's tests compare {name} with numbers of {source.framework}'s source"
        )
    module = import_module(f"rlpost.analysis.peers.{name.replace('-', '_')}")
    peer: Peer = module.PEER
    return peer


def verify(name: str) -> Verdict:
    """Run all cases of a preset against the installed framework.

    Args:
        name: one of PEERS.

    Returns:
        The outcome of each case, and what the framework has that the preset does not cover.

    Raises:
        UsageError: there is no live comparison for this preset.
        UnavailableError: the framework is not installed, or its import fails.
    """
    return run(peer_of(name))
