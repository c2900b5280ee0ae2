"""The registry of owners: who claims, since when, and when each was last heard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from .config import Config
from .facts import Facts
from .keys import Keys
from .scripts import Call, Scripts

#: Rows one heartbeat returns at most; whoever is beyond that is looked at by the next one.
HEARTBEAT_ROWS = 128

#: Seconds a tombstone's facts are kept, so that an owner thawed within a day learns its fate.
TOMBSTONE_FACTS = 86400


@dataclass(frozen=True)
class Heartbeat:
    """What one heartbeat brought back.

    ``status`` is ``ok``, ``missing``, ``reaped``, or ``left`` when none was sent.
    """

    status: str
    #: Server time in ms.
    now: int = 0
    #: Owners that did not write since the caller's last heartbeat -> their score.
    quiet: Mapping[str, int] = ()  # type: ignore[assignment]
    #: Owners registered on the caller's host.
    neighbours: tuple[str, ...] = ()
    #: Queue lists with suspects that wait on probation.
    probation: frozenset[str] = frozenset()


class Registry:
    """Owners, their facts and heartbeats (``superfetch:owners``, ``superfetch:owner:*``)."""

    def __init__(self, client: Redis, keys: Keys, config: Config) -> None:
        self.client = client
        self.keys = keys
        self.config = config
        self.scripts = Scripts(client)

    def register(self, facts: Facts) -> int | None:
        """Write all facts and count it as a heartbeat; server ms, or None if it was reaped."""
        fields = [part for pair in facts.dump().items() for part in pair]
        keys = self.keys
        reply = self.scripts.run(
            "register",
            [keys.owners, keys.facts(facts.owner), keys.host(facts.process.host), keys.reaped],
            [facts.owner, *fields],
        )
        return None if reply == b"reaped" else int(reply)

    def heartbeat(self, facts: Facts, since: int, changed: Mapping[str, str]) -> Heartbeat:
        """One heartbeat.

        Arguments:
            since: ``now`` of the caller's last one; 0 when it has none to compare with.
            changed: facts that changed since then, as ``Facts.dump`` has them.
        """
        reply = self.scripts.run(
            "heartbeat",
            self._heard_in(facts),
            [facts.owner, since, HEARTBEAT_ROWS, *(p for pair in changed.items() for p in pair)],
        )
        status = reply[0].decode()
        if status != "ok":
            return Heartbeat(status)
        rows = reply[2]
        quiet = {rows[i].decode(): int(float(rows[i + 1])) for i in range(0, len(rows), 2)}
        neighbours = tuple(owner.decode() for owner in reply[3])
        probation = frozenset(name.decode() for name in reply[4])
        return Heartbeat(status, int(reply[1]), quiet, neighbours, probation)

    def _heard_in(self, facts: Facts) -> list[str]:
        keys = self.keys
        host = keys.host(facts.process.host)
        return [keys.owners, keys.facts(facts.owner), host, keys.on_probation]

    def pulse(self, facts: Facts, state: str) -> list[Any]:
        """A heartbeat as a bare command: it asks for nobody, and tells of nothing but ``state``."""
        changed = ["state", state] if state else []
        return self.scripts.bare(
            Call("heartbeat", self._heard_in(facts), [facts.owner, 0, 0, *changed])
        )

    def leave(self, facts: Facts, tombstone: float) -> int:
        """End in order; unless 0 nothing was done: the number of jobs left, or -1 when reaped.

        Arguments:
            tombstone: seconds during which a claim of ours may still land; 0 for none.
        """
        keys = self.keys
        private = [keys.private(facts.owner, name) for name in facts.lists]
        held = [keys.held(facts.owner, name) for name in facts.lists]
        return int(
            self.scripts.run(
                "leave",
                [
                    keys.owners,
                    keys.facts(facts.owner),
                    keys.host(facts.process.host),
                    keys.reaped,
                    keys.running(facts.owner),
                    *private,
                    *held,
                ],
                [facts.owner, int(tombstone * 1000)],
            )
        )

    def on_probation(self) -> frozenset[str]:
        """Queue lists with suspects on probation."""
        names: Any = self.client.smembers(self.keys.on_probation)
        return frozenset(name.decode() for name in names)

    def owners(self) -> dict[str, int]:
        """Every registered owner -> its score, the last heartbeat in server ms."""
        rows: Any = self.client.zrange(self.keys.owners, 0, -1, withscores=True)
        return {owner.decode(): int(score) for owner, score in rows}

    def tombstones(self) -> dict[str, int]:
        """Owners that were reaped lately -> until when they are drained again (server ms)."""
        rows: Any = self.client.zrange(self.keys.reaped, 0, -1, withscores=True)
        return {owner.decode(): int(until) for owner, until in rows}

    def facts(self, owners: Iterable[str]) -> dict[str, Facts]:
        """The facts of some owners, in one round trip; an empty row gives the weakest facts."""
        names = list(owners)
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hgetall(self.keys.facts(name))
            rows = pipe.execute(raise_on_error=False)
        return {
            # A key of another type says as little as none.
            name: Facts.load(name, row if isinstance(row, dict) else {}, self.config)
            for name, row in zip(names, rows, strict=True)
        }

    def mark(self, owner: str, host: str, score: int, tombstone: float, reason: str) -> bool:
        """Mark an owner reaped unless it was heard since ``score``.

        Arguments:
            tombstone: seconds to drain its lists again, for claims that land late.
        """
        keys = self.keys
        return bool(
            self.scripts.run(
                "mark",
                [
                    keys.owners,
                    keys.facts(owner),
                    keys.host(host),
                    keys.reaped,
                    keys.suspects,
                    keys.stats,
                    keys.running(owner),
                ],
                [owner, score, int(tombstone * 1000), TOMBSTONE_FACTS * 1000, reason],
            )
        )

    def adopt(self, owner: str, queue_list: str, tombstone: float) -> str:
        """Register the owner of an unknown private list; see ``adopt.lua`` for the answer."""
        keys = self.keys
        host, _, rest = owner.partition("|")
        reply = self.scripts.run(
            "adopt",
            [
                keys.owners,
                keys.facts(owner),
                keys.reaped,
                keys.private(owner, queue_list),
                keys.held(owner, queue_list),
            ],
            [
                owner,
                queue_list,
                host,
                rest.partition("|")[0],
                repr(self.config.heartbeat_interval),
                repr(self.config.owner_ttl),
                int(tombstone * 1000),
            ],
        )
        return bytes(reply).decode()

    def forget_tombstone(self, owner: str) -> None:
        """Stop draining a reaped owner; its facts go by their own TTL."""
        self.client.zrem(self.keys.reaped, owner)

    def server_time(self) -> int:
        """The server's clock in ms: the only clock that is shared."""
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def connected(self, facts: Facts, run_id: str) -> bool | None:
        """Whether the server still has any of the owner's connections; None: cannot tell."""
        if not facts.connections or not facts.run_id or facts.run_id != run_id:
            return None
        try:
            reply: Any = self.client.execute_command("CLIENT", "LIST", "ID", *facts.connections)
        except ResponseError:  # forbidden by ACL
            return None
        return bool(bytes(reply).strip())

    def cut(self, facts: Facts, run_id: str) -> None:
        """CLIENT KILL the owner's connections, so that a frozen one claims nothing more."""
        if not facts.run_id or facts.run_id != run_id:
            return
        for connection in facts.connections:
            # Gone already, or forbidden: the tombstone covers it.
            with contextlib.suppress(ResponseError):
                self.client.execute_command("CLIENT", "KILL", "ID", connection)


def run_id(client: Redis) -> str:
    """Which run of the server this is; empty where INFO is forbidden or lacks it."""
    try:
        info: Any = client.info("server")
    except ResponseError:
        return ""
    return str(info.get("run_id", "")) if isinstance(info, dict) else ""


def connection_id(client: Redis) -> int:
    """The id of the connection that ``client`` would use next; 0 where that is forbidden."""
    try:
        return int(client.execute_command("CLIENT", "ID"))
    except (RedisError, TypeError, ValueError):
        return 0
