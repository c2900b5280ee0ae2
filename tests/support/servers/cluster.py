"""A cluster on loopback, without the program that other tools need for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from support.servers.server import Server, free_port
from support.waiting import eventually

SLOTS = 16384


class Cluster:
    """Primaries that share the slots evenly."""

    def __init__(self, nodes: list[Server]) -> None:
        self.nodes = nodes
        first, *others = nodes
        share = SLOTS // len(nodes) + 1
        for at, node in enumerate(nodes):
            last = min(SLOTS, (at + 1) * share) - 1
            self._tell(node, "ADDSLOTSRANGE", at * share, last)
            self._tell(node, "SET-CONFIG-EPOCH", at + 1)
        for node in others:
            self._tell(node, "MEET", "127.0.0.1", first.port, first.options["cluster-port"])
        eventually(lambda: all(map(self._is_whole, nodes)), 30, 0.1)

    def _tell(self, node: Server, *words: Any) -> Any:
        return node.client().execute_command("CLUSTER", *words)

    def _is_whole(self, node: Server) -> bool:
        told = bytes(self._tell(node, "INFO")).split()
        return b"cluster_state:ok" in told and b"cluster_known_nodes:%d" % len(self.nodes) in told

    def slot(self, key: str) -> int:
        return int(self._tell(self.nodes[0], "KEYSLOT", key))

    def home(self, key: str) -> Server:
        """The node that has the slot of a key."""
        at = self.slot(key) // (SLOTS // len(self.nodes) + 1)
        return self.nodes[at]

    def id(self, node: Server) -> str:
        return bytes(self._tell(node, "MYID")).decode()

    def begin_move(self, slot: int, source: Server, target: Server) -> None:
        """The old way, still the default of most tools."""
        self._tell(target, "SETSLOT", slot, "IMPORTING", self.id(source))
        self._tell(source, "SETSLOT", slot, "MIGRATING", self.id(target))

    def call_off_move(self, slot: int) -> None:
        for node in self.nodes:
            self._tell(node, "SETSLOT", slot, "STABLE")

    def move(self, key: bytes, source: Server, target: Server) -> None:
        source.client().execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)

    def end_move(self, slot: int, source: Server, target: Server) -> None:
        for node in (target, source):
            self._tell(node, "SETSLOT", slot, "NODE", self.id(target))


@contextmanager
def cluster(nodes: int = 3) -> Iterator[Cluster]:
    with ExitStack() as stack:
        options = [{"cluster_enabled": True, "cluster_port": free_port()} for _ in range(nodes)]
        yield Cluster([stack.enter_context(Server(**each)) for each in options])
