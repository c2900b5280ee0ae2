"""The heartbeat session: it registers an owner and sends its heartbeats, by its own connection.

The heartbeat thread calls the session. At a failover the owner calls it, too, in the thread that
makes a channel. The session reports the server's answers to the owner (``HeartbeatListener``),
which acts on them. To *reconcile* is to compare the jobs that the server has for this owner with
those that this process knows, and to requeue the others.

If the process dies, the record of the owner stays on the server and no heartbeat comes any more: a
peer declares the owner dead. If it dies between a registration and the server's answer, the
registered name has no process, and a peer declares that name dead.

Names of other projects that they do not document follow; a test checks each.

Foreign names:

redis
    have a connection of its own, which no full pool can stop: client:Redis.connection
    know that the connection is another one: connection:Connection._sock
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeVar

from redis import ConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ..model.config import Config
from ..model.log_text import one_line_each
from ..model.owner_record import HUNG, RETRY_INTERVAL, STOPPING, OwnerRecord
from ..model.process import mint_owner
from ..model.staleness import StalenessTracker
from ..model.start_permit import clock
from ..store.database import Database
from ..store.owner_registry import Heartbeat, OwnerRegistry
from ..store.redis.clients import PrimaryGuard, closed_while_idle, known_as
from ..store.redis.connections import Params, place_of, without_retries

logger = one_line_each(logging.getLogger(__name__))

LONGEST_SLEEP = 3.0  # seconds that a healthy loop may sleep at a time; Celery's sleep 2
SHORTEST_WAIT = 1.0  # seconds for the answer to a heartbeat at least, however short the interval

T = TypeVar("T")


class HeartbeatListener(Protocol):
    """The owner, as its heartbeat session calls it.

    The session calls these methods in the heartbeat thread; before that thread runs, in the thread
    that joins. Under gevent the native thread of ``GeventPulse`` calls ``loop_ticks`` and
    ``on_hung``, and reads ``stopping`` and ``failing``, too. No method may wait for a lock or for
    the server: a heartbeat would be late, and a peer would declare the owner dead. What takes
    longer, the owner defers to another thread (``Owner.catch_up``).
    """

    stopping: bool  # the process is to stop: it claims and starts no more jobs
    failing: bool  # it stops by an error of its own, and leaves its running jobs to a reaper

    def waits(self) -> bool:
        """Return whether a blocking read of this process waits for jobs at this moment. The server
        counts the owners that wait (``OwnerRank.idle``)."""

    def describe(self, record: OwnerRecord) -> OwnerRecord:
        """Return the record with what this process knows of itself: its node, tasks, blocking
        connections, pool and jobs. The next heartbeat sends what has changed."""

    def loop_ticks(self) -> int:
        """Return the number of ticks of the event loop; 0 if there is none to report on."""

    def on_answer(self, record: OwnerRecord, answer: Heartbeat, asked: float) -> None:
        """Take over an answer: the server accepted the heartbeat sent at ``asked`` (``clock``)."""

    def on_hung(self) -> None:
        """Stop starts: the event loop stands still. The next heartbeat says so."""

    def on_outage_over(self) -> None:
        """Replace other connections later: they may be dead, after a heartbeat that failed."""

    def on_possible_rollback(self) -> None:
        """Reconcile later: the heartbeats have another connection, and the server's data may be
        older than what it confirmed by the earlier one."""

    def on_server_restarted(self) -> None:
        """Reconcile later, and remember when: the server has another run id than before, since it
        restarted, or another server took its place."""

    def on_owner_lost(self, owner: str, how: str, new: str) -> None:
        """Give up a name that the server has lost; this process continues under a new one.

        Arguments:
            how: ``reaped`` by a peer that declared it dead, or ``unknown``: its keys are gone.
        """

    def on_failover(self, params: Params) -> None:
        """Follow the session to the server that took over."""


class HeartbeatSession:
    """The registration and the heartbeats of one owner.

    Only the heartbeat thread calls ``register``, ``beat``, ``leave`` and ``check_loop`` (before it
    runs: the thread that joins), so they take no lock. Under gevent a native thread calls
    ``check_loop`` instead, and reads ``state`` and ``pulse``. Other threads read the attributes
    without a lock: each is replaced as a whole, once the server has confirmed the new value.
    """

    def __init__(
        self,
        params: Params,
        config: Config,
        primary_guard: PrimaryGuard,
        record: OwnerRecord,
        *,
        listener: HeartbeatListener,
        failover_targets: Sequence[Params],
    ) -> None:
        self.config = config
        self.primary_guard = primary_guard
        self.params = params  # of the server that the session uses; a failover replaces them
        self._failover_targets = failover_targets
        self._listener = listener
        #: The record as the server has it; without a name while this process is not registered.
        self.record = record
        #: For how long each other owner has sent no heartbeat. Each answer to a heartbeat of this
        #: process names the owners that sent none since the answer before.
        self.staleness = StalenessTracker(
            longest_gap=2 * config.heartbeat_interval + RETRY_INTERVAL
        )
        #: The owners on this host, as of the last heartbeat; ``Owner.host_peers`` omits this one.
        self.host_owners: tuple[str, ...] = ()
        #: Returns, for a state, the bytes of the heartbeat command that reports it. The first
        #: registration sets it. A call needs neither a lock nor the server.
        self.pulse: Callable[[str], bytes]
        #: For how long the worker's event loop has not ticked. It is watched as other owners are:
        #: only checks that came in time count.
        self._loop_staleness = StalenessTracker(longest_gap=2 * RETRY_INTERVAL)
        self._hung_at = 0  # the loop's tick count when it was found to stand still; 0: it runs
        #: Server ms of the last two heartbeats. A server that has one of them as this owner's last
        #: heartbeat is the owner's primary or a replica of it.
        self._last_two_ms: tuple[int, ...] = ()
        self._last_ms = 0  # server ms of the last heartbeat; 0: a heartbeat has failed since
        #: A new name whose registration had no answer; the next try uses it again. If it used
        #: another name, the first could stay registered for ever: the peers on this host see that
        #: its process lives, and do not declare it dead.
        self._unanswered_name = ""
        self._registry: OwnerRegistry
        self._at: Params | None = None  # the server of ``_registry``; None: not connected yet
        self._socket: object = None  # the socket of its connection at the last check
        self._registered_on: object = None  # the socket by which the whole record was written

    @property
    def registry(self) -> OwnerRegistry:
        """The registry of the server of ``params``, by the connection of the heartbeats."""
        if (params := self.params) is not self._at:
            self._registry = OwnerRegistry(Database(self.connect(params), self.config))
            self._at = params
        return self._registry

    def connect(self, params: Params) -> Redis:
        """Return a client with one connection of its own, so that neither a full pool nor a pending
        reply stops heartbeats. Its timeouts are at most one heartbeat interval (and at least
        ``SHORTEST_WAIT``): a half-open connection delays heartbeats by no more."""
        options = {**without_retries(params), "max_connections": 2}
        options.pop("primary_guard", None)
        longest = max(SHORTEST_WAIT, self.config.heartbeat_interval)
        for name in options.keys() & {"socket_timeout", "socket_connect_timeout"}:
            options[name] = min(options[name], longest)
        return Redis(connection_pool=ConnectionPool(**options), single_connection_client=True)

    def _prepare_record(self) -> OwnerRecord:
        """Return the record as it is to be on the server. If the connection is another one than at
        the last call, and its server may have older data, tell the listener."""
        connection: Any = self.registry.client.connection
        (id, run_id), before = known_as(connection), self._socket
        self._socket = connection._sock
        same_run = run_id and run_id == self.primary_guard.run_id
        # Where Sentinels or a cluster choose the primary, a server may have been a replica
        # meanwhile and have lost writes, without a restart.
        undone = not same_run or getattr(connection, "replaceable", False)
        if before not in (None, self._socket) and undone:
            self._listener.on_possible_rollback()
        record = self._listener.describe(self.record)
        return record.with_(
            state=self.state,
            run_id=run_id,
            # Left empty if the server does not say the id of this connection (a proxy). Otherwise a
            # peer would find these connections missing and conclude that this process has died.
            connections=tuple(sorted({id, *record.connections}) if id else ()),
            stopping_since=self._stopping_since(),
        )

    def _stopping_since(self) -> int:
        """Return since when this owner is stopping (server ms): the time of the last heartbeat
        before the stop, since the server's clock is not asked."""
        if self.state != STOPPING:
            return 0
        return self.record.stopping_since or (self._last_two_ms[-1] if self._last_two_ms else 0)

    def register(
        self, lists: Mapping[str, int], *, unused: Collection[str] = (), lost: str = ""
    ) -> None:
        """Write the whole record.

        Arguments:
            lists: queue lists (-> ms of x-expires) to add to it.
            unused: queue lists to remove from it.
            lost: ``reaped`` or ``unknown`` if the server lost the present name: the record then
                gets a new name, as it does if it has none. Empty: the name stays.
        """
        self._repeat_if_closed(partial(self._register, lists, unused, lost))

    def _register(self, lists: Mapping[str, int], unused: Collection[str], lost: str) -> None:
        record, old = self._prepare_record(), self.record.owner
        remaining = {name: ms for name, ms in record.lists.items() if name not in unused}
        record = record.with_(lists={**remaining, **lists})
        if lost or not old:
            self._unanswered_name = self._unanswered_name or mint_owner(record.process)
            record = record.with_(owner=self._unanswered_name)
        asked = clock()
        while (answer := self.registry.register(record)).status == "reaped":
            self._unanswered_name = mint_owner(record.process)
            record, lost = record.with_(owner=self._unanswered_name), answer.status
        self._unanswered_name = ""
        self._last_two_ms = ()
        # The answer to a registration names no owner that sent no heartbeat, so that the watch of
        # the other owners starts again.
        self.staleness.interrupt()
        self._on_answer(record, answer, asked)
        if lost and old:
            self._listener.on_owner_lost(old, lost, record.owner)

    def beat(self) -> Heartbeat:
        """Send a heartbeat; register again if the server has lost this owner. Return the answer.

        If the server cannot be reached, look for a failover target that has taken over, and raise
        ``RedisError``.
        """
        if not self.record.owner:  # the owner left while this call waited for the heartbeat thread
            return Heartbeat("left")
        try:
            if self.primary_guard.contested:
                # Another connection of this owner has reached another server. One of the two is an
                # old primary: connect again, to the server that is the primary now.
                self.primary_guard.contested = False
                self.registry.client.connection_pool.disconnect()
            record, asked, answer = self._repeat_if_closed(self._send_heartbeat)
        except RedisError:
            self.staleness.interrupt()
            self._loop_staleness.interrupt()
            self._last_ms = 0
            self._find_successor()
            raise
        if answer.status == "ok":
            self._on_answer(record, answer, asked)
        else:
            # ``missing``: a part of what the server knew of this owner was deleted or evicted, and
            # no peer has declared it dead: it registers again under its name, which is not lost.
            # ``unknown``: all of that is gone, perhaps with the database. The tombstone of a reaped
            # owner stays for a day only, so the owner cannot know whether it was declared dead, and
            # registers under a new name.
            self.register({}, lost="" if answer.status == "missing" else answer.status)
        return answer

    def _send_heartbeat(self) -> tuple[OwnerRecord, float, Heartbeat]:
        """Send one heartbeat; return the record, when it was sent (``clock``), and the answer."""
        record, asked = self._prepare_record(), clock()
        changed = record.dump()
        if self._socket is self._registered_on:
            # The native thread may have sent another state meanwhile.
            changed = dict(changed.items() - self.record.dump().items(), state=record.state)
        # On another socket the whole record is sent: a server that came back from an older snapshot
        # has an older record, and would keep each fact that does not change again.
        waits = self._listener.waits()
        return record, asked, self.registry.heartbeat(record, self._last_ms, changed, waits=waits)

    def _repeat_if_closed(self, act: Callable[[], T]) -> T:
        """Call ``act``, which may be repeated. If the server or a proxy closed the heartbeat
        connection while it was idle, call it with a new connection at once. That is no failure: if
        it counted as one, the staleness that this observer has watched so far would be void."""
        connection: Any = self.registry.client.connection
        was_open = connection._sock is not None
        if was_open and closed_while_idle(connection):
            connection.disconnect()
            was_open = False
        try:
            return act()
        except RedisConnectionError as exc:
            if not was_open:
                raise
            logger.debug(
                "Heartbeat connection closed while idle (%s); the command is repeated "
                "over a new one.",
                exc,
            )
        return act()

    def _on_answer(self, record: OwnerRecord, answer: Heartbeat, asked: float) -> None:
        """Take over what the server answered to a registration or a heartbeat."""
        if self.record.owner and not self._last_ms:
            self._listener.on_outage_over()
        before, self.primary_guard.run_id = self.primary_guard.run_id, record.run_id
        if before not in ("", record.run_id):
            self._listener.on_server_restarted()
            # The heartbeats of other owners were watched at the earlier server. At this one they
            # may come at other times.
            self.staleness.interrupt()
            logger.info(
                "Redis restarted, or another server took its place (owner=%s, run_id=%s, "
                "run_id_before=%s). The worker has registered there again, and compares its jobs "
                "in flight with those of the server.",
                record.owner,
                record.run_id or "unknown",
                before,
            )
        self._registered_on = self._socket
        self.record, self.pulse = record, partial(self.registry.pulse, record)
        self._last_ms = answer.now
        self._last_two_ms = (*self._last_two_ms[-1:], answer.now)
        self.staleness.observe(answer.quiet, monotonic())
        self.host_owners = answer.host_owners
        self._listener.on_answer(record, answer, asked)

    def leave(self, tombstone: float) -> int:
        """Unregister, unless the server refuses; return what ``OwnerRegistry.leave`` returns."""
        left = self._repeat_if_closed(partial(self.registry.leave, self.record, tombstone))
        if left <= 0:
            self.record = self.record.with_(owner="", lists={})
            # Unused from here on: the server may close it before the next join.
            self.registry.client.connection_pool.disconnect()
        return left

    @property
    def state(self) -> str:
        """The state that the next heartbeat reports: running, stopping or hung."""
        if self._listener.stopping and not self._listener.failing:
            return STOPPING
        return HUNG if self._hung_at else "running"

    def check_loop(self) -> None:
        """Report that the worker's event loop does not tick; called once a second. A failed
        heartbeat voids the earlier checks."""
        ticks, now = 0 if self._listener.stopping else self._listener.loop_ticks(), monotonic()
        self._loop_staleness.observe({"loop": ticks}, now)
        still_s = self._loop_staleness.staleness_of("loop", ticks, now) or 0.0
        if ticks and still_s >= max(self.config.owner_ttl, LONGEST_SLEEP):
            self._hung_at = ticks
            # Starts stop before the heartbeat reports the state: a peer that reads it recovers the
            # jobs, and one that started here afterwards would run twice.
            self._listener.on_hung()
        elif ticks != self._hung_at:
            self._hung_at = 0

    def _find_successor(self) -> None:
        """Move to the failover target that has taken over, if there is one. A target has taken over
        if it has one of the last two heartbeats of this owner (an old primary that comes back does
        not) and accepts a new heartbeat (a replica does not)."""
        for params in self._failover_targets:
            if self.is_at(params):
                continue
            with suppress(RedisError), self.registry_at(params) as registry:
                if registry.last_heartbeat(self.record.owner) in self._last_two_ms:
                    registry.heartbeat(self.record, 0, {}, waits=False)
                    return self.move(params)

    @contextmanager
    def registry_at(self, params: Params) -> Iterator[OwnerRegistry]:
        """Yield the registry of another server, by a connection of its own."""
        client = self.connect(params)
        try:
            yield OwnerRegistry(Database(client, self.config))
        finally:
            client.connection_pool.disconnect()

    def is_at(self, params: Params) -> bool:
        """Return whether the parameters lead to the server of this session."""
        return place_of(params) == place_of(self.params)

    def move(self, params: Params) -> None:
        """Move to the server that took over."""
        logger.warning(
            "Redis failover: the worker continues at the new primary, and compares its jobs in "
            "flight with those of that server (owner=%s). Check the old primary.",
            self.record.owner,
        )
        self.params = without_retries(params)
        self._listener.on_failover(self.params)
