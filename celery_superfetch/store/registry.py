"""The registry of owners: who claims, since when, and when each was last heard."""

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
        """Write all facts; counts as a heartbeat, whose status is ``ok`` or ``reaped``."""
        return _heartbeat(self.scripts.run(*self._call(facts, 0, facts.dump(), self.keys.reaped)))

    def heartbeat(self, facts: Facts, since: int, changed: Mapping[str, str]) -> Heartbeat:
        """One heartbeat, with facts that changed ``since`` the caller's last (``now``; 0: none)."""
        return _heartbeat(self.scripts.run(*self._call(facts, since, changed)))

    def pulse(self, facts: Facts, state: str) -> bytes:
        """A heartbeat as it is sent: it asks for nobody, and tells of nothing but ``state``."""
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
        return bool(self.client.exists(self.keys.facts(owner)))

    def last_heard(self, owner: str) -> int | None:
        """Server ms of its last heartbeat; None when it has none here."""
        score = self.client.zscore(self.keys.owners, owner)
        return None if score is None else _whole(score)

    def leave(self, facts: Facts, tombstone: float) -> int:
        """End in order; unless 0 nothing was done: the number of jobs left, or -1 when reaped. For
        ``tombstone`` seconds a claim of ours may still land."""
        self._note_served(facts.lists)
        keys, owner = self.keys, facts.owner
        names = [*self._rows(facts), keys.reaped, keys.private(owner)]
        names += [keys.landing(owner, name) for name in facts.lists]
        return int(self.scripts.run("leave", names, [owner, int(tombstone * 1000)]))

    def anybody(self) -> bool:
        """Whether there is an owner, or a tombstone, to look at."""
        return bool(self.client.exists(self.keys.owners, self.keys.reaped))

    def owners(self) -> dict[str, int]:
        """Every registered owner -> its score, the last heartbeat in server ms."""
        return _scores(self.client.zrange(self.keys.owners, 0, -1, withscores=True))

    def tombstones(self) -> dict[str, int]:
        """Owners that were reaped lately -> until when they are drained again (server ms)."""
        return _scores(self.client.zrange(self.keys.reaped, 0, -1, withscores=True))

    def facts(self, owners: Iterable[str]) -> dict[str, Facts]:
        """The facts of some owners; an empty row gives the weakest facts."""
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
        """Of the owners those that are heard, and are not about to stop."""
        scores, now = self.owners(), self.database.server_time()
        return [
            facts
            for owner, facts in self.facts(scores).items()
            if facts.state == "running" and now - scores[owner] < facts.owner_ttl * 1000
        ]

    def mark(self, facts: Facts, score: int, tombstone: float, reason: str) -> Facts | None:
        """Mark an owner reaped; for ``tombstone`` seconds its lists are drained again, for claims
        that land late. Returns its facts then; None: it was heard since ``score``."""
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
        """Have the owner of some private lists judged, or drained again, like any other; False if
        it needs none of that. Whoever lives has registered a list before it has one."""
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
        """Drain it no more; until here nothing that is known of it expires."""
        keys = self.keys
        kept = "EXPIRE", keys.facts(owner), TOMBSTONE_FACTS
        self._at_once([kept, ("ZREM", keys.reaped, owner)])

    def connected(self, facts: Facts, run_id: str) -> bool | None:
        """Whether the server still has any of the owner's connections; None: cannot tell."""
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
    """Owner -> score. What is no name or no time is nobody's, and no reason to fail."""
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
