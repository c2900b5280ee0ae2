"""The registry: the owner record and last heartbeat of each owner, and the tombstones of reaped
ones. A heartbeat thread registers its owner and renews it; the reaper reads all and marks the dead.
If an owner's process dies, its row and record stay until the reaper marks them; if the reaper dies
after ``mark``, the tombstone makes the next pass drain the owner."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

from redis.exceptions import RedisError, ResponseError

from ..model.facts import Facts
from .database import Structure, chunks
from .wire.clients import addresses, cut
from .wire.scripts import Call, packed

HEARTBEAT_ROWS = 4096  # that a heartbeat returns at most, the oldest: a thousand are 50 kB
#: Seconds for which a queue list is remembered after its last owner left, and how many are at most.
SERVED_S, SERVED_LISTS = 7 * 86400, 10_000

TOMBSTONE_FACTS = 86400  # seconds: an owner thawed a day later learns its fate


class Heartbeat(NamedTuple):
    """The server's answer to a heartbeat."""

    #: ``ok``; ``missing``: the row in ``superfetch:owners``, that of its host, or the facts have
    #: gone; ``unknown``: the row and the facts; ``reaped``; or ``left``: none was sent.
    status: str
    now: int = 0  # server time in ms
    #: Owners that did not write since the caller's last heartbeat -> their score.
    quiet: Mapping[str, int] = MappingProxyType({})
    neighbours: tuple[str, ...] = ()  # owners registered on the caller's host
    probation: frozenset[str] = frozenset()  # queue lists with suspects that wait on probation
    due: float | None = None  # when the next parked job is (server ms); None: none is parked


class Registry(Structure):
    """Owners, their facts and heartbeats (``superfetch:owners``, ``superfetch:owner:*``)."""

    def register(self, facts: Facts) -> Heartbeat:
        """Write the whole owner record. It counts as a heartbeat, with status ``ok`` or
        ``reaped``."""
        return _heartbeat(self.scripts.run(*self._call(facts, 0, facts.dump(), self.keys.reaped)))

    def heartbeat(self, facts: Facts, since: int, changed: Mapping[str, str]) -> Heartbeat:
        """Send one heartbeat, with the fields of the owner record that ``changed``. ``since``: the
        ``now`` of the caller's last heartbeat, after which an owner that sent none is quiet; 0:
        none."""
        return _heartbeat(self.scripts.run(*self._call(facts, since, changed)))

    def pulse(self, facts: Facts, state: str) -> bytes:
        """Return the bytes of a heartbeat that writes ``state`` alone and asks for no other owners:
        under gevent a native thread sends it while the hub is blocked."""
        call = self._call(facts, 0, {"state": state})
        return b"".join(packed([self.scripts.command(call._replace(whole=True))]))

    def _call(self, facts: Facts, since: int, fields: Mapping[str, str], *extra_keys: str) -> Call:
        names = [*self._rows(facts), self.keys.on_probation, self.keys.parked, *extra_keys]
        args = [facts.owner, since, HEARTBEAT_ROWS, *chain.from_iterable(fields.items())]
        return Call("heartbeat", names, args)

    def _rows(self, facts: Facts) -> list[str]:
        keys = self.keys
        return [keys.owners, keys.facts(facts.owner), keys.host(facts.process.host)]

    def knows(self, owner: str) -> bool:
        """Return whether an owner has a record, reaped or not."""
        return bool(self.client.exists(self.keys.facts(owner)))

    def last_heard(self, owner: str) -> int | None:
        """Return the server ms of an owner's last heartbeat; None if it is not registered."""
        score = self.client.zscore(self.keys.owners, owner)
        return None if score is None else _whole(score)

    def leave(self, facts: Facts, tombstone: float) -> int:
        """Unregister an owner that stops; return 0, or, where nothing was done, the number of jobs
        that it still has, or -1 if it was reaped. For ``tombstone`` seconds passes still drain its
        lists: a blocking read that was sent may move a job there."""
        self._note_served(facts.lists)
        keys, owner = self.keys, facts.owner
        names = [*self._rows(facts), keys.reaped, keys.private(owner)]
        names += [keys.landing(owner, name) for name in facts.lists]
        return int(self.scripts.run("leave", names, [owner, int(tombstone * 1000)]))

    def anybody(self) -> bool:
        """Return whether there is any owner, or tombstone, for a pass."""
        return bool(self.client.exists(self.keys.owners, self.keys.reaped))

    def owners(self) -> dict[str, int]:
        """Return each registered owner -> its score: the last heartbeat in server ms."""
        return _scores(self.client.zrange(self.keys.owners, 0, -1, withscores=True))

    def tombstones(self) -> dict[str, int]:
        """Return each tombstone's owner -> until when passes drain it again (server ms)."""
        return _scores(self.client.zrange(self.keys.reaped, 0, -1, withscores=True))

    def facts(self, owners: Iterable[str]) -> dict[str, Facts]:
        """Return the records of some owners; an owner without one gets defaults."""
        names = list(owners)
        rows = self._at_once((("HGETALL", self.keys.facts(name)) for name in names), errors=True)
        return {
            # A key of another type says as little as none.
            name: Facts.load(name, row if isinstance(row, dict) else {}, self.config)
            for name, row in zip(names, rows, strict=True)
        }

    def states(self, owners: Collection[str]) -> dict[str, str | None]:
        """Return owner -> the state in its facts, reaped or not; None where it has none."""
        rows = self._at_once([("HGET", self.keys.facts(name), "state") for name in owners])
        return {
            name: None if raw is None else raw.decode(errors="replace")
            for name, raw in zip(owners, rows, strict=True)
        }

    def well(self) -> list[Facts]:
        """Return the owners with a heartbeat within their ``owner_ttl`` that are not stopping."""
        scores, now = self.owners(), self.database.server_time()
        return [
            facts
            for owner, facts in self.facts(scores).items()
            if facts.state == "running" and now - scores[owner] < facts.owner_ttl * 1000
        ]

    def mark(self, facts: Facts, score: int, tombstone: float, reason: str) -> Facts | None:
        """Mark an owner reaped, and close its connections; return its record, or None if it sent a
        heartbeat since ``score``. For ``tombstone`` seconds each pass drains its lists, since a
        claim that was sent may still land. If the process dies after the script, that drains the
        owner."""
        self._note_served(facts.lists)
        keys, owner = self.keys, facts.owner
        names = [*self._rows(facts), keys.reaped, keys.stats, keys.private(owner)]
        ran = self.scripts.run("mark", names, [owner, score, int(tombstone * 1000), reason])
        if ran is None:
            return None
        # A frozen owner claims nothing more; where that fails, its tombstone covers what it does.
        cut(self.client, facts.run_id, facts.connections)
        return facts.with_(state="reaped", was=facts.state, ran=ran)

    def _note_served(self, queue_lists: Iterable[str]) -> None:
        """Remember that an owner had these queue lists until now. It is written before the owner
        leaves the registry: if the process dies in between, the owner record still has them."""
        now, key = self.database.server_time(), self.keys.served
        scores = [part for name in queue_lists for part in (now, name)]
        if not scores:
            return
        commands: list[tuple[Any, ...]] = [("ZADD", key, *some) for some in chunks(scores, 1000)]
        commands += [
            ("ZREMRANGEBYSCORE", key, "-inf", now - SERVED_S * 1000),
            ("ZREMRANGEBYRANK", key, 0, -SERVED_LISTS - 1),
            ("EXPIRE", key, SERVED_S),
        ]
        with suppress(RedisError):  # over its memory limit, say: an owner has to leave all the same
            self._at_once(commands, errors=True)

    def served(self) -> list[str]:
        """Return the queue lists that an owner had within ``SERVED_S`` and left since."""
        since = self.database.server_time() - SERVED_S * 1000
        names = self.client.zrangebyscore(self.keys.served, since, "+inf")
        return [name.decode(errors="replace") for name in names]

    def forget_served(self, queue_lists: Collection[str]) -> int:
        """Forget that these queue lists were served, and since when jobs wait there; returns how
        many of them were remembered."""
        if not queue_lists:
            return 0
        keys = self.keys
        served, waiting = self._at_once(
            [("ZREM", keys.served, *queue_lists), ("HDEL", keys.oldest, *queue_lists)]
        )
        return max(int(served), int(waiting))

    def adopt(self, owner: str, queue_lists: Collection[str]) -> bool:
        """Register an owner whose keys were found without a registration: passes then judge it, or
        drain it again if it was reaped, like any other. Return False if that was not necessary. A
        live owner registers a queue list before its first claim there."""
        facts, key = self.facts([owner])[owner], self.keys.facts(owner)
        is_reaped = facts.state == "reaped"
        if is_reaped and not queue_lists:
            return False
        lists = {**dict.fromkeys(queue_lists, 0), **facts.lists}
        if unlisted := lists != facts.lists:
            self.client.hset(key, "lists", json.dumps(lists))
        if is_reaped:  # it is listed again; PERSIST would be one permission more
            self.client.expire(key, 365 * TOMBSTONE_FACTS)
        registry = self.keys.reaped if is_reaped else self.keys.owners
        row = {owner: self.database.server_time()}
        return bool(self.client.zadd(registry, row, nx=True)) or unlisted

    def drop_tombstone(self, owner: str) -> None:
        """Remove a tombstone: passes drain the owner no more, and its record expires in a day."""
        keys = self.keys
        kept = "EXPIRE", keys.facts(owner), TOMBSTONE_FACTS
        self._at_once([kept, ("ZREM", keys.reaped, owner)])

    def connected(self, facts: Facts, run_id: str) -> bool | None:
        """Return whether the server still has any of an owner's connections; None: unknown."""
        if not facts.connections or not facts.run_id or facts.run_id != run_id:
            return None
        try:
            reply = self.client.execute_command("CLIENT", "LIST", "ID", *facts.connections)
        except ResponseError:  # forbidden by ACL
            return None
        return bool(bytes(reply).strip())

    def tells_connections(self) -> bool:
        """Return whether the server tells this user which connections are open."""
        try:
            self.client.execute_command("CLIENT", "LIST", "ID", self.client.client_id())
        except ResponseError:
            return False
        return True

    def addresses(self, facts: Facts) -> list[str]:
        """Return the addresses of an owner's connections, as far as the server confirms these."""
        return addresses(self.client, facts.run_id, facts.connections)


def _scores(rows: Any) -> dict[str, int]:
    """Return owner -> score; a name or score that is malformed raises nothing."""
    scores = ((owner.decode(errors="replace"), float(score)) for owner, score in rows)
    return {owner: _whole(score) for owner, score in scores}


def _whole(score: float) -> int:
    """Return a score in whole milliseconds, as ``mark.lua`` compares it; 0 for an infinite one."""
    return int(score) if isfinite(score) else 0


def _heartbeat(reply: Any) -> Heartbeat:
    status, *rest = reply
    now, rows, neighbours, probation, due = rest or (0, (), (), (), None)
    return Heartbeat(
        status.decode(),
        int(now),
        _scores(chunks(rows, 2)),
        tuple(owner.decode(errors="replace") for owner in neighbours),
        frozenset(name.decode(errors="replace") for name in probation),
        None if due is None else float(due),
    )
