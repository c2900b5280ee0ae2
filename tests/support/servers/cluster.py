"""A cluster on loopback, without the program that other tools need for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis
from redis.exceptions import AskError, ClusterDownError, MovedError

from support.servers.server import Option, Server, free_port
from support.waiting import eventually

SLOTS = 16384

#: ms without a word after which the other nodes take one for failed. Nobody is, on a machine that
#: is merely busy, until a test ends one: then they are told to be quick.
PATIENT, QUICK = 60_000, 1_500

#: The prefix of suites that run on a cluster (``--cluster``).
TAG = "{tests}:"


def in_slot(settings: dict[str, Any], elsewhere: str) -> dict[str, Any]:
    """An app's settings in the slot of ``TAG``, its results elsewhere."""
    conf = dict(settings.get("conf") or {})
    prefix = {"global_keyprefix": TAG}
    if settings.get("superfetch", True):
        settings["options"] = {**prefix, **(settings.get("options") or {})}
    else:
        given = conf.get("broker_transport_options") or {}
        conf["broker_transport_options"] = {**prefix, **given}
    return {"result_url": elsewhere, **settings, "conf": conf}


class Node(Server):
    """A server whose port for the other nodes is another, too, when somebody took it."""

    def _launch(self, port: int) -> None:
        if not self.port:
            self.configure(cluster_port=free_port())
        super()._launch(port)


class Cluster:
    """Primaries that share the slots evenly, each with so many replicas."""

    def __init__(self, nodes: list[Server], replicas: int = 0) -> None:
        self.nodes = nodes
        count = len(nodes) // (1 + replicas)
        primaries, others = nodes[:count], nodes[count:]
        share = SLOTS // count + 1
        for at, node in enumerate(primaries):
            last = min(SLOTS, (at + 1) * share) - 1
            self.tell(node, "ADDSLOTSRANGE", at * share, last)
        for at, node in enumerate(nodes):
            self.tell(node, "SET-CONFIG-EPOCH", at + 1)
            if at:
                first = nodes[0]
                self.tell(node, "MEET", "127.0.0.1", first.port, first.options["cluster-port"])
        eventually(lambda: all(map(self._is_whole, nodes)), 30, 0.05)
        for at, node in enumerate(others):
            self.tell(node, "REPLICATE", self.id(primaries[at % count]))
        eventually(lambda: all(map(in_step, others)), 30, 0.05)

    def tell(self, node: Server, *words: Any) -> Any:
        return node.client().execute_command("CLUSTER", *words)

    def _is_whole(self, node: Server) -> bool:
        told = bytes(self.tell(node, "INFO")).split()
        return b"cluster_state:ok" in told and b"cluster_known_nodes:%d" % len(self.nodes) in told

    @property
    def living(self) -> list[Server]:
        return [node for node in self.nodes if node.alive()]

    def client(self) -> redis.RedisCluster[Any]:
        """A client of redis-py's own, which follows by itself."""
        node = self.living[0]
        password = node.options.get("requirepass")
        return redis.RedisCluster(host="127.0.0.1", port=node.port, password=password)

    def slot(self, key: str) -> int:
        return int(self.tell(self.living[0], "KEYSLOT", key))

    def home(self, key: str) -> Server:
        """The node that serves the slot of a key, as it says itself."""
        for node in self.living:
            try:
                node.client().exists(key)
            except (MovedError, ClusterDownError):
                continue
            except AskError:  # it leaves this node, which has it to the end of the move
                pass
            return node
        raise AssertionError(f"nobody serves the slot of {key}")

    def id(self, node: Server) -> str:
        return bytes(self.tell(node, "MYID")).decode()

    # -- failover

    def heir(self, primary: Server) -> Server:
        """A living replica of it."""
        mine = self.id(primary).encode()
        for row in bytes(self.tell(primary, "NODES")).splitlines():
            _, address, flags, of, *_ = row.split()
            if b"slave" in flags and b"fail" not in flags and of == mine:
                port = int(address.partition(b"@")[0].rpartition(b":")[2])
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError("it has no replica")

    def fail_over(self, key: str) -> Server:
        """Planned: the primary of the slot hands over to a replica in step; the new primary."""
        primary = self.home(key)
        heir = self.heir(primary)
        self.tell(heir, "FAILOVER")
        eventually(lambda: is_primary(heir) and not is_primary(primary), 30)
        return heir

    def be_quick(self) -> None:
        """Let the nodes take one for failed soon."""
        for node in self.living:
            node.client().config_set("cluster-node-timeout", QUICK)

    def crash(self, key: str) -> Server:
        """Unplanned: the primary of the slot is killed, and a replica elected; the new primary."""
        return self._without(key, Server.kill)[1]

    def cut_off(self, key: str) -> tuple[Server, Server]:
        """The primary of the slot stands still until a replica is elected; both of them."""
        return self._without(key, Server.pause)

    def _without(self, key: str, end: Callable[[Server], None]) -> tuple[Server, Server]:
        primary = self.home(key)
        heir = self.heir(primary)
        eventually(lambda: in_step(heir), 10)
        self.be_quick()
        end(primary)
        eventually(lambda: is_primary(heir), 30)
        return primary, heir

    # -- moves of slots

    def begin_move(self, slot: int, source: Server, target: Server) -> None:
        """The old way, still the default of most tools."""
        self.tell(target, "SETSLOT", slot, "IMPORTING", self.id(source))
        self.tell(source, "SETSLOT", slot, "MIGRATING", self.id(target))

    def call_off_move(self, slot: int) -> None:
        for node in self.nodes:
            self.tell(node, "SETSLOT", slot, "STABLE")

    def move(self, key: bytes, source: Server, target: Server) -> None:
        password = target.options.get("requirepass")
        auth = ["AUTH", password] if password else []
        where = "127.0.0.1", target.port, key, 0, 5000
        source.client().execute_command("MIGRATE", *where, *auth)

    def end_move(self, slot: int, source: Server, target: Server) -> None:
        for node in (target, source):
            self.tell(node, "SETSLOT", slot, "NODE", self.id(target))

    def move_slot(self, key: str, target: Server) -> None:
        """All of it in the old way, key by key, as the tools do."""
        source, slot = self.home(key), self.slot(key)
        self.begin_move(slot, source, target)
        while keys := self.tell(source, "GETKEYSINSLOT", slot, 10):
            for name in keys:
                self.move(name, source, target)
        self.end_move(slot, source, target)

    def move_slot_at_once(self, key: str, target: Server) -> None:
        """Atomically, as Valkey 9 can; ResponseError where the server cannot."""
        source, slot = self.home(key), self.slot(key)
        self.tell(source, "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.id(target))
        eventually(lambda: self.home(key) is target, 30, 0.05)


def is_primary(node: Server) -> bool:
    return bool(node.client().role()[0] == b"master")


def in_step(replica: Server) -> bool:
    return replica.client().info("replication").get("master_link_status") == "up"


@contextmanager
def cluster(replicas: int = 0, **options: Option) -> Iterator[Cluster]:
    """Three primaries, each with so many replicas."""
    more: dict[str, Option] = {"repl_diskless_sync_delay": 0, "cluster_node_timeout": PATIENT}
    with ExitStack() as stack:
        made = [
            Node(cluster_enabled=True, **{**more, **options}) for _ in range(3 * (1 + replicas))
        ]
        yield Cluster([stack.enter_context(each) for each in made], replicas)
