"""The registry of owners: each owner's record and last heartbeat, and the tombstones of those that
were reaped.

An owner is a process that claims jobs. Its heartbeat thread registers it, sends its heartbeats and
unregisters it (``register``, ``heartbeat``, ``leave``); under gevent a native thread sends the
bytes of ``pulse``. Reapers read all owners and ``mark`` those that are dead: in a worker's
maintenance thread, in the task that beat sends, or in `superfetch reap` and `rollback`. A marked
owner is *reaped*. Its record stays for a while as its *tombstone*: while that is there, each *pass*
(one run of a reaper) drains the owner, that is, moves the jobs of its lists to their queues. Only
`reap --full` and `superfetch rollback` call ``register_unknown_owner``. A worker that has got a job
of an unknown task calls ``healthy``: a live peer may have the task. Reapers and the console ask
``connected`` to judge an owner without recent heartbeats (``reaper/evidence.py``). An owner looks
itself up (``knows``, ``last_heartbeat``), and asks for the ``states`` of owners when jobs are
missing. The console reads (``served``, ``addresses``, ``healthy``) and forgets queues that have no
worker any more (``forget_served``).

If an owner's process dies, its row and its record stay until a reaper marks them. If a reaper dies
before ``mark`` has run its script, the owner is still registered, and the next pass marks it. If
the reaper dies later, the tombstone is there, and the next pass drains the owner.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

from redis.exceptions import RedisError, ResponseError

from ..model.owner_rank import OwnerRank
from ..model.owner_record import OwnerRecord
from .database import Structure, chunks, none_if_wrong_type
from .redis.call import Call
from .redis.clients import addresses, cut
from .redis.pipeline import packed
from .redis.server import is_temporary

#: Owners that a heartbeat returns at most, those with the oldest heartbeats. A thousand are 50 kB.
HEARTBEAT_ROWS = 4096
SERVED_S = 7 * 86400  # seconds for which a queue list is remembered after its last owner left
SERVED_LISTS = 10_000  # queue lists that are remembered so at most

#: Seconds for which the record of a reaped owner stays after the last pass that drains it. A
#: process that was frozen (SIGSTOP, a suspended VM) and continues within that time still learns
#: that it was reaped.
TOMBSTONE_TTL_S = 86400


class Heartbeat(NamedTuple):
    """The server's answer to a heartbeat."""

    #: - ``ok``: the server has the heartbeat.
    #: - ``reaped``: a reaper declared the owner dead.
    #: - ``unknown``: the server has neither the row in ``superfetch:owners`` nor the record.
    #: - ``missing``: it lacks one of these, or the name in the set of the owner's host.
    #: - ``left``: the owner has left, and no heartbeat was sent (``HeartbeatSession`` sets it).
    status: str
    now: int = 0  # server time in ms
    #: The owners that sent no heartbeat since the caller's last one -> their last heartbeat (server
    #: ms).
    quiet: Mapping[str, int] = MappingProxyType({})
    host_owners: tuple[str, ...] = ()  # owners registered on the caller's host
    probation: frozenset[str] = frozenset()  # queue lists with suspects that wait on probation
    due: float | None = None  # when the next parked job is due (server ms); None: none is parked
    rank: OwnerRank = OwnerRank()  # among the owners of the same queue lists
    paused: frozenset[str] = frozenset()  # the queues that are paused


class OwnerRegistry(Structure):
    """Owners, their records and heartbeats (``superfetch:owners``, ``superfetch:owner:*``)."""

    def register(self, record: OwnerRecord) -> Heartbeat:
        """Write the whole owner record; return the answer as for a heartbeat. Its status is ``ok``
        or ``reaped``. The key of the tombstones tells the script to register."""
        call = self._call(record, 0, record.dump(), record.group, False, self.keys.reaped)
        return _heartbeat(self.scripts.run(*call))

    def heartbeat(
        self, record: OwnerRecord, since: int, changed: Mapping[str, str], *, waits: bool = False
    ) -> Heartbeat:
        """Send one heartbeat.

        Arguments:
            since: the ``now`` of the caller's last heartbeat: owners that sent none after it are
                returned as ``quiet``. 0: return none.
            changed: the fields of the owner record to write.
            waits: whether the owner waits for jobs at this moment.
        """
        return _heartbeat(
            self.scripts.run(*self._call(record, since, changed, record.group, waits))
        )

    def pulse(self, record: OwnerRecord, state: str) -> bytes:
        """Return the bytes of a heartbeat that writes only ``state`` and returns no quiet owners.
        Under gevent a native thread sends them while the hub is blocked. It could not react to a
        server that does not know the script, so the bytes contain the script's whole text."""
        call = self._call(record, 0, {"state": state})
        return b"".join(packed([self.scripts.command(call._replace(whole=True))]))

    def _call(
        self,
        record: OwnerRecord,
        since: int,
        fields: Mapping[str, str],
        group: str = "",
        waits: bool = False,
        *extra_keys: str,
    ) -> Call:
        keys = self.keys
        names = [*self._rows(record), keys.on_probation, keys.parked, keys.ranks, keys.paused]
        names += extra_keys
        args = [record.owner, since, HEARTBEAT_ROWS, group, int(waits)]
        return Call("heartbeat", names, [*args, *chain.from_iterable(fields.items())])

    def _rows(self, record: OwnerRecord) -> list[str]:
        keys = self.keys
        return [keys.owners, keys.owner_record(record.owner), keys.host(record.process.host)]

    def knows(self, owner: str) -> bool:
        """Return whether the server has a record of an owner, or its tombstone."""
        return bool(self.client.exists(self.keys.owner_record(owner)))

    def last_heartbeat(self, owner: str) -> int | None:
        """Return the server ms of an owner's last heartbeat; None if it is not registered."""
        score = self.client.zscore(self.keys.owners, owner)
        return None if score is None else _whole(score)

    def leave(self, record: OwnerRecord, tombstone: float) -> int:
        """Unregister an owner that stops; if it still has jobs, do nothing.

        Arguments:
            tombstone: seconds for which a tombstone stays, so that passes drain the owner's lists:
                a blocking read whose reply is missing may still move a job there. 0: none stays.

        Returns:
            0 if it was unregistered; the number of jobs that it still has; -1 if it was reaped.
        """
        self._note_served(record.lists)
        keys, owner = self.keys, record.owner
        names = [*self._rows(record), keys.reaped, keys.private(owner), keys.ranks]
        names += [keys.landing(owner, name) for name in record.lists]
        return int(self.scripts.run("leave", names, [owner, int(tombstone * 1000)]))

    def has_owners(self) -> bool:
        """Return whether there is an owner, or a tombstone. If there is neither, a reaper has
        nothing to do."""
        return bool(self.client.exists(self.keys.owners, self.keys.reaped))

    def owners(self) -> dict[str, int]:
        """Return each registered owner -> its last heartbeat (server ms): its score."""
        key = self.keys.owners
        return _scores(self._read(self.client.zrange, key, 0, -1, withscores=True, empty=[]))

    def tombstones(self) -> dict[str, int]:
        """Return each tombstone's owner -> until when passes drain it again (server ms)."""
        key = self.keys.reaped
        return _scores(self._read(self.client.zrange, key, 0, -1, withscores=True, empty=[]))

    def records(self, owners: Iterable[str]) -> dict[str, OwnerRecord]:
        """Return the records of some owners; an owner without one gets defaults."""
        names = list(owners)
        rows = self._at_once(
            (("HGETALL", self.keys.owner_record(name)) for name in names), errors=True
        )
        return {
            # A key of another type counts as no record.
            name: OwnerRecord.load(name, none_if_wrong_type(row) or {}, self.config)
            for name, row in zip(names, rows, strict=True)
        }

    def states(self, owners: Collection[str]) -> dict[str, str | None]:
        """Return owner -> the state in its record (``reaped`` in a tombstone); None: no record."""
        rows = self._at_once([("HGET", self.keys.owner_record(name), "state") for name in owners])
        return {
            name: None if raw is None else raw.decode(errors="replace")
            for name, raw in zip(owners, rows, strict=True)
        }

    def healthy(self) -> list[OwnerRecord]:
        """Return the records of the owners whose state is running and whose last heartbeat is
        younger than their ``owner_ttl``."""
        scores, now = self.owners(), self.database.server_time()
        return [
            record
            for owner, record in self.records(scores).items()
            if record.state == "running" and now - scores[owner] < record.owner_ttl * 1000
        ]

    def mark(
        self, record: OwnerRecord, score: int, tombstone: float, reason: str
    ) -> OwnerRecord | None:
        """Mark an owner reaped, and close its connections. If the process dies after the script,
        the tombstone is there, and the next pass drains the owner.

        Arguments:
            score: the last heartbeat that the decision saw.
            tombstone: seconds for which each pass drains the owner's lists: a claim or a blocking
                read that the owner has sent may still move jobs there.
            reason: why it was declared dead.

        Returns:
            its record; None: it has sent a heartbeat since ``score``, so nothing was done.
        """
        self._note_served(record.lists)
        keys, owner = self.keys, record.owner
        names = [*self._rows(record), keys.reaped, keys.stats, keys.private(owner), keys.ranks]
        ran = self.scripts.run("mark", names, [owner, score, int(tombstone * 1000), reason])
        if ran is None:
            return None
        # If the owner is frozen and not dead, it can claim nothing when it continues. If its
        # connections cannot be closed, the next passes drain the jobs that it still claims.
        # An error here must not hide that the owner was marked: its death would never be reported.
        with suppress(RedisError, OSError):
            cut(self.client, record.run_id, record.connections)
        return record.with_(state="reaped", state_before_reap=record.state, ran_at_reap=ran)

    def _note_served(self, queue_lists: Iterable[str]) -> None:
        """Note that these queue lists had an owner until now. It is written before the owner leaves
        the registry: if the process dies in between, the owner record still names them."""
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
        # If the server refuses the note (it is over its memory limit, say), the owner still leaves.
        with suppress(RedisError):
            self._at_once(commands, errors=True)

    def served(self) -> list[str]:
        """Return the queue lists that an owner left within the last ``SERVED_S`` seconds."""
        since = self.database.server_time() - SERVED_S * 1000
        key = self.keys.served
        names = self._read(self.client.zrangebyscore, key, since, "+inf", empty=[])
        return [name.decode(errors="replace") for name in names]

    def forget_served(self, queue_lists: Collection[str]) -> int:
        """Forget that these queue lists had an owner, and since when jobs wait there; return how
        many were remembered."""
        if not queue_lists:
            return 0
        keys = self.keys
        served, waiting = self._at_once(
            [("ZREM", keys.served, *queue_lists), ("HDEL", keys.oldest, *queue_lists)]
        )
        return max(int(served), int(waiting))

    def register_unknown_owner(self, owner: str, queue_lists: Collection[str]) -> bool:
        """Register an owner that has keys and is not registered. Passes then watch its heartbeats
        as those of any other owner, or drain it again if it was reaped. Return False if there was
        nothing to do. If the process dies midway, a second call does what is left.

        Arguments:
            queue_lists: those of its landing lists that were found. They are added to its record; a
                live owner has them there already, since it writes a queue list before it claims
                from it.
        """
        record, key = self.records([owner])[owner], self.keys.owner_record(owner)
        is_reaped = record.state == "reaped"
        # A key of another type holds no jobs, and each pass would try in vain to drain it.
        has_jobs = queue_lists or self.client.type(self.keys.private(owner)) == b"hash"
        if is_reaped and not has_jobs:
            return False
        lists = {**dict.fromkeys(queue_lists, 0), **record.lists}
        if unlisted := lists != record.lists:
            self.client.hset(key, "lists", json.dumps(lists))
        if is_reaped:
            # The record has to stay as long as passes drain the owner, so it gets a year. PERSIST
            # would be one more command that users' ACLs have to allow.
            self.client.expire(key, 365 * TOMBSTONE_TTL_S)
        registry = self.keys.reaped if is_reaped else self.keys.owners
        row = {owner: self.database.server_time()}
        return bool(self.client.zadd(registry, row, nx=True)) or unlisted

    def drop_tombstone(self, owner: str) -> None:
        """Make the next passes no longer drain a reaped owner; its record expires in a day. If the
        process dies midway, the next pass does it again."""
        keys = self.keys
        expire = "EXPIRE", keys.owner_record(owner), TOMBSTONE_TTL_S
        self._at_once([expire, ("ZREM", keys.reaped, owner)])

    def connected(self, record: OwnerRecord, run_id: str) -> bool | None:
        """Return whether the server still has one of an owner's connections. None: the server does
        not say, or it has restarted since, so that the ids of the connections mean nothing.
        ``run_id``: the id of the server's present run. Raises ResponseError if the server refuses
        to say it only now (BUSY)."""
        if not record.connections or not record.run_id or record.run_id != run_id:
            return None
        try:
            reply = self.client.execute_command("CLIENT", "LIST", "ID", *record.connections)
        except ResponseError as exc:
            if is_temporary(exc):
                raise
            return None
        return bool(bytes(reply).strip())

    def reports_connections(self) -> bool:
        """Return whether the ACL allows this user to ask which connections are open. Raises
        ResponseError if the server refuses it only now (BUSY)."""
        try:
            self.client.execute_command("CLIENT", "LIST", "ID", self.client.client_id())
        except ResponseError as exc:
            if is_temporary(exc):
                raise
            return False
        return True

    def addresses(self, record: OwnerRecord) -> list[str]:
        """Return the addresses of those of an owner's connections that the server still has."""
        return addresses(self.client, record.run_id, record.connections)


def _scores(rows: Any) -> dict[str, int]:
    """Return owner -> score in whole ms. A malformed name or score does not raise: bytes that are
    no UTF-8 are replaced, and an infinite score is 0."""
    scores = ((owner.decode(errors="replace"), float(score)) for owner, score in rows)
    return {owner: _whole(score) for owner, score in scores}


def _whole(score: float) -> int:
    """Return a score in whole milliseconds, as ``mark.lua`` compares it; 0 for an infinite one."""
    return int(score) if isfinite(score) else 0


def _heartbeat(reply: Any) -> Heartbeat:
    status, *fields = reply
    now, rows, host_owners, probation, due, rank, paused = fields or (0, (), (), (), None, (), ())
    return Heartbeat(
        status.decode(),
        int(now),
        _scores(chunks(rows, 2)),
        tuple(owner.decode(errors="replace") for owner in host_owners),
        frozenset(name.decode(errors="replace") for name in probation),
        None if due is None else float(due),
        OwnerRank(*map(int, rank)),
        frozenset(name.decode(errors="replace") for name in paused),
    )
