"""The heartbeat session: it registers an owner and sends its heartbeats, by its own connection.

The heartbeat thread calls it, and the owner for a failover, in the thread that makes a channel. It
reports the server's answers to the owner (``HeartbeatListener``), which acts on them. If the
process dies, the record of the owner stays on the server and no heartbeat comes any more: a peer
declares the owner dead.

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
from ..model.facts import HUNG, RETRY_INTERVAL, STOPPING, Facts
from ..model.log_text import one_line_each
from ..model.permit import clock
from ..model.process import mint_owner
from ..model.silence import Silence
from ..store.database import Database
from ..store.redis.clients import Home, closed_while_idle, known_as
from ..store.redis.connections import Params, place_of, without_retries
from ..store.registry import Heartbeat, Registry

logger = one_line_each(logging.getLogger(__name__))

LONGEST_SLEEP = 3.0  # seconds that a healthy loop may sleep at a time; Celery's sleep 2
SHORTEST_WAIT = 1.0  # seconds for the answer to a heartbeat at least, however short the interval

T = TypeVar("T")


class HeartbeatListener(Protocol):
    """Interface of an owner to its heartbeat session: what it asks, and reports.

    The session calls these methods in the heartbeat thread; before that thread runs, in the thread
    that joins. Under gevent the native thread of ``GeventPulse`` calls ``loop_ticks`` and
    ``on_hung``, and reads ``stopping`` and ``failing``, too. No method may wait for a lock or for
    the server: a heartbeat would be late, and a peer would declare the owner dead. Such calls are
    deferred.
    """

    stopping: bool
    failing: bool

    def waits(self) -> bool:
        """Return whether this process waits for jobs at this moment."""

    def describe(self, record: Facts) -> Facts:
        """Return the record with what this process knows of itself: its node, tasks, blocking
        connections, pool and jobs. The next heartbeat sends what has changed."""

    def loop_ticks(self) -> int:
        """Return the number of ticks of the event loop; 0 if there is none to report on."""

    def on_answer(self, record: Facts, answer: Heartbeat, asked: float) -> None:
        """Take over an answer: the server accepted the heartbeat sent at ``asked`` (``clock``)."""

    def on_hung(self) -> None:
        """Stop starts: the event loop stands still. The next heartbeat says so."""

    def on_outage_over(self) -> None:
        """Replace other connections later: they may be dead, after a heartbeat that failed."""

    def on_possible_rollback(self) -> None:
        """Reconcile later: the server's data may be older than what it has confirmed."""

    def on_server_restarted(self) -> None:
        """Reconcile later: the server has restarted, or another one took its place."""

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
        home: Home,
        record: Facts,
        *,
        listener: HeartbeatListener,
        failover_targets: Sequence[Params],
    ) -> None:
        self.config = config
        self.home = home
        self.params = params  # of the server that it uses; a failover replaces them
        self._failover_targets = failover_targets
        self._listener = listener
        #: The record as the server has it; without a name while this process is not registered.
        self.facts = record
        #: The staleness of other owners, as this process has watched it by its own heartbeats.
        self.silence = Silence(longest_gap=2 * config.heartbeat_interval + RETRY_INTERVAL)
        self.neighbours: tuple[str, ...] = ()  # owners of this host at the last heartbeat
        #: State -> the command that reports it as a heartbeat, in the bytes that are sent. It needs
        #: neither a lock nor the server.
        self.pulse: Callable[[str], bytes]
        #: The loop is watched as other owners are: only checks that came in time count.
        self._loop_silence = Silence(longest_gap=2 * RETRY_INTERVAL)
        self._hung_at = 0  # its ticks when it was found to stand still; 0: it turns
        #: Server ms of the last two heartbeats. A server that has one of them as this owner's last
        #: heartbeat is the owner's primary or a replica of it.
        self._last_two_ms: tuple[int, ...] = ()
        self._last_ms = 0  # of the last one; 0: one failed since
        #: A new name whose registration had no answer; the next try takes it again. If it took
        #: another one, the first could stay registered for ever: the peers on this host see that
        #: its process lives, and do not declare it dead.
        self._unanswered_name = ""
        self._registry: Registry
        self._at: Params | None = None  # the server of ``_registry``; None: not connected yet
        self._socket: object = None  # the socket of its connection at the last check
        self._registered_on: object = None  # the socket by which the whole record was written

    @property
    def registry(self) -> Registry:
        """The registry of the server of ``params``, by the connection of the heartbeats."""
        if (params := self.params) is not self._at:
            self._registry = Registry(Database(self.connect(params), self.config))
            self._at = params
        return self._registry

    def connect(self, params: Params) -> Redis:
        """Return a client with one connection of its own: neither a full pool nor a pending reply
        stops heartbeats. A half-open connection stops them until the next one at most."""
        own = {**without_retries(params), "max_connections": 2}
        own.pop("home", None)
        longest = max(SHORTEST_WAIT, self.config.heartbeat_interval)
        for name in own.keys() & {"socket_timeout", "socket_connect_timeout"}:
            own[name] = min(own[name], longest)
        return Redis(connection_pool=ConnectionPool(**own), single_connection_client=True)

    def _current_record(self) -> Facts:
        """Return the record as it is to be on the server."""
        connection: Any = self.registry.client.connection
        (id, run_id), before = known_as(connection), self._socket
        self._socket = connection._sock
        same_run = run_id and run_id == self.home.run_id
        # Where Sentinels or a cluster choose the primary, its data may be older in the same run.
        undone = not same_run or getattr(connection, "replaceable", False)
        if before not in (None, self._socket) and undone:
            # A restart or a failover may have undone what the server had confirmed.
            self._listener.on_possible_rollback()
        record = self._listener.describe(self.facts)
        return record.with_(
            state=self.state,
            run_id=run_id,
            # Left empty if the server does not say the id of this connection (a proxy): a peer
            # would otherwise take missing connections for the death of this process.
            connections=tuple(sorted({id, *record.connections}) if id else ()),
            stopping_since=self._stopping_since(),
        )

    def _stopping_since(self) -> int:
        """Return since when this owner is stopping (server ms): the time of the last heartbeat
        before the stop, since the server's clock is not asked."""
        if self.state != STOPPING:
            return 0
        return self.facts.stopping_since or (self._last_two_ms[-1] if self._last_two_ms else 0)

    def register(
        self, lists: Mapping[str, int], *, unused: Collection[str] = (), lost: str = ""
    ) -> None:
        """Write the whole record.

        Arguments:
            lists: queue lists (-> ms of x-expires) to add to it.
            unused: queue lists to remove from it.
            lost: how the server lost the present name (``LOST`` in ``owner.py``): the record gets a
                new one then, as it does if there is none. Empty: the name stays.
        """
        self._repeat_if_closed(partial(self._register, lists, unused, lost))

    def _register(self, lists: Mapping[str, int], unused: Collection[str], lost: str) -> None:
        facts, old = self._current_record(), self.facts.owner
        kept = {name: ms for name, ms in facts.lists.items() if name not in unused}
        facts = facts.with_(lists={**kept, **lists})
        if lost or not old:
            self._unanswered_name = self._unanswered_name or mint_owner(facts.process)
            facts = facts.with_(owner=self._unanswered_name)
        asked = clock()
        while (answer := self.registry.register(facts)).status == "reaped":
            self._unanswered_name = mint_owner(facts.process)
            facts, lost = facts.with_(owner=self._unanswered_name), answer.status
        self._unanswered_name = ""
        self._last_two_ms = ()
        # From here on this observer watches the heartbeats of other owners.
        self.silence.interrupt()
        self._note(facts, answer, asked)
        if lost and old:
            self._listener.on_owner_lost(old, lost, facts.owner)

    def beat(self) -> Heartbeat:
        """Send a heartbeat; register again if the server has lost this owner. Return the answer.

        If the server cannot be reached, look for a failover target that has taken over, and raise
        ``RedisError``.
        """
        if not self.facts.owner:  # it left while this call waited for the thread
            return Heartbeat("left")
        try:
            if self.home.contested:  # by another connection: this one may be at an old primary
                self.home.contested = False
                self.registry.client.connection_pool.disconnect()
            facts, asked, answer = self._repeat_if_closed(self._send_heartbeat)
        except RedisError:
            self.silence.interrupt()
            self._loop_silence.interrupt()
            self._last_ms = 0
            self._find_successor()
            raise
        if answer.status == "ok":
            self._note(facts, answer, asked)
        else:
            # ``missing``: a part of what the server knew of this owner was deleted or evicted, and
            # no peer has declared it dead: it registers again under its name, which is not lost.
            # ``unknown``: all of that is gone, perhaps with the database. The tombstone of a reaped
            # owner stays for a day only, so the owner cannot know whether it was declared dead, and
            # registers under a new name.
            self.register({}, lost="" if answer.status == "missing" else answer.status)
        return answer

    def _send_heartbeat(self) -> tuple[Facts, float, Heartbeat]:
        """Send one heartbeat; return the record, when it was sent (``clock``), and the answer."""
        facts, asked = self._current_record(), clock()
        changed = facts.dump()
        if self._socket is self._registered_on:
            # The native thread may have sent another state meanwhile.
            changed = dict(changed.items() - self.facts.dump().items(), state=facts.state)
        # Else all: a server that came back from an older snapshot has an older record, and would
        # keep each fact that does not change again.
        waits = self._listener.waits()
        return facts, asked, self.registry.heartbeat(facts, self._last_ms, changed, waits=waits)

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
            logger.debug("The heartbeat connection was closed (%s); repeating by a new one.", exc)
        return act()

    def _note(self, facts: Facts, answer: Heartbeat, asked: float) -> None:
        """Take over what the server answered to a registration or a heartbeat."""
        if self.facts.owner and not self._last_ms:
            self._listener.on_outage_over()
        before, self.home.run_id = self.home.run_id, facts.run_id
        if before not in ("", facts.run_id):
            self._listener.on_server_restarted()
            # Heartbeats of other owners that were watched at the server before: they say nothing of
            # those at this one.
            self.silence.interrupt()
            logger.info(
                "The server of owner %s has restarted, or another took its place (run_id=%s, "
                "before: %s). The owner record was written again; its jobs in flight are "
                "reconciled.",
                facts.owner,
                facts.run_id or "unknown",
                before,
            )
        self._registered_on = self._socket
        self.facts, self.pulse = facts, partial(self.registry.pulse, facts)
        self._last_ms = answer.now
        self._last_two_ms = (*self._last_two_ms[-1:], answer.now)
        self.silence.note(answer.quiet, monotonic())
        self.neighbours = answer.neighbours
        self._listener.on_answer(facts, answer, asked)

    def leave(self, tombstone: float) -> int:
        """Unregister, unless the server refuses; return what ``Registry.leave`` returns."""
        left = self._repeat_if_closed(partial(self.registry.leave, self.facts, tombstone))
        if left <= 0:
            self.facts = self.facts.with_(owner="", lists={})
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
        """Report an event loop that does not tick; called once a second. Checks count only while
        heartbeats succeed."""
        ticks, now = 0 if self._listener.stopping else self._listener.loop_ticks(), monotonic()
        self._loop_silence.note({"loop": ticks}, now)
        still_s = self._loop_silence.silent_for("loop", ticks, now) or 0.0
        if ticks and still_s >= max(self.config.owner_ttl, LONGEST_SLEEP):
            self._hung_at = ticks
            # Before the heartbeat reports it: a peer that reads that recovers the jobs.
            self._listener.on_hung()
        elif ticks != self._hung_at:
            self._hung_at = 0

    def _find_successor(self) -> None:
        """Move to the failover target that has taken over. It has a recent heartbeat of this owner,
        unlike an old primary that comes back with its data; and it accepts a new heartbeat, unlike
        a replica."""
        for params in self._failover_targets:
            if self.is_at(params):
                continue
            with suppress(RedisError), self.registry_at(params) as registry:
                if registry.last_heard(self.facts.owner) in self._last_two_ms:
                    registry.heartbeat(self.facts, 0, {}, waits=False)
                    return self.move(params)

    @contextmanager
    def registry_at(self, params: Params) -> Iterator[Registry]:
        """Yield the registry of another server, by a connection of its own."""
        client = self.connect(params)
        try:
            yield Registry(Database(client, self.config))
        finally:
            client.connection_pool.disconnect()

    def is_at(self, params: Params) -> bool:
        """Return whether the parameters lead to the server of this session."""
        return place_of(params) == place_of(self.params)

    def move(self, params: Params) -> None:
        """Move to the server that took over."""
        logger.warning(
            "Owner %s goes on at the server that took its server's place.", self.facts.owner
        )
        self.params = without_retries(params)
        self._listener.on_failover(self.params)
