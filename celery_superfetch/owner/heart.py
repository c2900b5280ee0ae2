"""The heart of an owner: all that the server is told of it, by one thread and one connection."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic, time
from typing import Any, TypeVar, cast

from redis import ConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ..model.config import Config
from ..model.facts import HUNG, RETRY_INTERVAL, STOPPING, Facts
from ..model.log_text import one_line_each
from ..model.permit import clock
from ..model.process import ProcessImage, mint_owner
from ..model.silence import Silence
from ..store.database import Database
from ..store.registry import Heartbeat, Registry
from ..store.wire.clients import Home, closed_while_idle, known_as
from ..store.wire.connections import Params, place_of, without_retries
from ..store.wire.pools import SharedPool, shared_pool
from .in_flight.in_flight import InFlight
from .in_flight.runner import Runner

logger = one_line_each(logging.getLogger(__name__))

LONGEST_SLEEP = 3.0  # seconds that a loop that is well may sleep at a time; Celery's sleep 2
SHORTEST_WAIT = 1.0  # seconds for the answer to a heartbeat at least, however short the interval

T = TypeVar("T")

#: What the server answers a heartbeat -> what that means to whoever reads the log.
LOST = {
    "reaped": "Worker declared dead (owner=%s): the server got no heartbeat of it within its "
    "limits. The process was frozen, its event loop hung, or it was cut off from the server. A "
    "peer recovered its jobs: those that run here may run twice, the others do not start here.",
    "unknown": "The server no longer knows owner=%s: its keys were flushed, deleted or evicted, "
    "or the server restarted empty. Jobs of this worker that the server still has are requeued; "
    "those that run may run twice; those that it no longer has are logged as lost. Look for "
    "FLUSHALL, FLUSHDB and DEL, set maxmemory-policy to noeviction, and turn persistence on.",
}


class Heart:
    """Registers an owner, says that it lives, and hears what became of it and its server. Only the
    thread of ``Heartbeats`` acts here (before it runs, whoever joins), without a lock: what others
    want to know is an attribute, written once it is true."""

    def __init__(
        self, params: Params, elsewhere: Sequence[Params], config: Config, runner: Runner
    ) -> None:
        self.home = Home()
        self.params = without_retries(params)  # with a failover list that may change
        if hasattr(params.get("connection_class"), "replaceable"):
            self.params["home"] = self.home
        self.elsewhere = elsewhere
        self.config = config
        self.client = Redis(connection_pool=self._pool())  # everybody's but the heart's
        database = Database(self.client, config)
        database.is_registered = runner.is_registered
        self.in_flight = InFlight(database, runner)
        #: What the registry was told last; has no name while this process is not registered.
        self.facts = Facts.mine("", ProcessImage.current(), config)
        #: As in ``Facts``; whoever knows the runs writes it.
        #: Queue lists from which some channel claims; the others that are registered are
        #: ``unconsumed``. Written by ``Membership``.
        self.consumed: Collection[str] = frozenset()
        #: As in ``Facts``; maintenance writes it.
        self.started_jobs: tuple[tuple[int, int], ...] = ()
        self.overdue: deque[Callable[[], object]] = deque()  # what takes long, for other threads
        #: Who is silent, as this process saw it by its own heartbeats.
        self.silence = Silence(longest_gap=2 * config.heartbeat_interval + RETRY_INTERVAL)
        self.neighbours: tuple[str, ...] = ()  # owners of this host at the last heartbeat
        self.outages = 0
        self.blocking: set[int] = set()  # ids of connections that are cut when it is reaped
        #: Set (by a signal handler, too) once the process is to stop: it claims and starts no more.
        self.stopping = False
        #: Set if an error of its own is why it stops: the jobs that it still runs at its end are
        #: to blame, as after any death.
        self.failing = False
        #: A state -> what says it, and that this owner lives, as it is sent. It asks nobody.
        self.pulse: Callable[[str], bytes]
        #: The loop is watched as other owners are: by looks that came in time.
        self._loop_silence = Silence(longest_gap=2 * RETRY_INTERVAL)
        self._hung_at = 0  # how often it had turned when it was found to stand still, if it does
        #: Our last two heartbeats (server ms): whoever knows one is our server, or its replica.
        self._heard: tuple[int, ...] = ()
        self._last_ms = 0  # of the last one; 0: one failed since
        #: A new name whose registration had no answer: while this process lives no neighbour takes
        #: that for dead, so the next try has to have it.
        self._unheard = ""
        #: The name under which a peer declared this process dead, until it has another.
        self._lost_name = ""
        self._registry: Registry
        self._at: Params | None = None  # where that is, once it could be connected to
        self._socket: object = None  # of its connection, when that was looked at last
        self._registered_on: object = None  # the socket by which the whole record was written

    @property
    def registry(self) -> Registry:
        if (params := self.params) is not self._at:
            self._registry = Registry(Database(self.connect(params), self.config))
            self._at = params
        return self._registry

    def connect(self, params: Params) -> Redis:
        """A client with one connection: a full pool, or a reply that waits, must not stop a heart.
        A half-open one does until the next heartbeat at most."""
        own = {**without_retries(params), "max_connections": 2}
        own.pop("home", None)
        longest = max(SHORTEST_WAIT, self.config.heartbeat_interval)
        for name in own.keys() & {"socket_timeout", "socket_connect_timeout"}:
            own[name] = min(own[name], longest)
        return Redis(connection_pool=ConnectionPool(**own), single_connection_client=True)

    def _pool(self) -> SharedPool:
        """Return the pool of this process at the server: that of its channels, too, where nobody
        can name another primary to one of them."""
        params = self.params
        if params.get("slot") is None and "connection_pool" not in params:
            params = {name: value for name, value in params.items() if name != "home"}
        return shared_pool(params)

    def _known(self) -> Facts:
        connection: Any = self.registry.client.connection
        (id, run_id), runner = known_as(connection), self.in_flight.runner
        before, self._socket = self._socket, connection._sock
        same_run = run_id and run_id == self.home.run_id
        # Where Sentinels or a cluster choose the primary, its data may be older in the same run.
        undone = not same_run or getattr(connection, "replaceable", False)
        if before not in (None, self._socket) and undone:
            # A restart or a failover may have undone what we were told was done.
            self.in_flight.doubt = True
        return self.facts.with_(
            state=self.state,
            node=runner.node,
            tasks=runner.tasks,
            run_id=run_id,
            # None where the server does not tell our own: they say nothing then.
            connections=tuple(sorted({id, *self.blocking}) if id else ()),
            pool=tuple(runner.pids()),
            unconsumed=tuple(sorted(self.facts.lists.keys() - self.consumed)),
            started_jobs=self.started_jobs,
            stopping_since=self._stopping_since(),
        )

    def _stopping_since(self) -> int:
        """Return since when this owner is stopping (server ms), a heartbeat too early at most."""
        if self.state != STOPPING:
            return 0
        return self.facts.stopping_since or (self._heard[-1] if self._heard else 0)

    def register(
        self, lists: Mapping[str, int], *, unused: Collection[str] = (), lost: str = ""
    ) -> None:
        """Write all facts, under a new name where there is none, or it was ``lost``: how."""
        self._repeat_if_closed(partial(self._register, lists, unused, lost))

    def _register(self, lists: Mapping[str, int], unused: Collection[str], lost: str) -> None:
        facts, old = self._known(), self.facts.owner
        kept = {name: ms for name, ms in facts.lists.items() if name not in unused}
        facts = facts.with_(lists={**kept, **lists})
        if lost or not old:
            self._unheard = self._unheard or mint_owner(facts.process)
            facts = facts.with_(owner=self._unheard)
        asked = clock()
        while (heard := self.registry.register(facts)).status == "reaped":
            self._unheard = mint_owner(facts.process)
            facts, lost = facts.with_(owner=self._unheard), heard.status
        self._unheard = ""
        self._heard = ()
        # The first look: it saw nobody, and from here on it sees who is not heard.
        self.silence.interrupt()
        self._note(facts, heard, asked)
        if lost and old:
            self.overdue.append(partial(self.was_lost, lost, old, facts.owner))
            if lost == "unknown":
                self.overdue.append(self.in_flight.lost_jobs.record_data_loss)
        elif self._lost_name:
            self._log_successor(self._lost_name, facts.owner)
            self._lost_name = ""

    def heartbeat(self) -> Heartbeat:
        if not self.facts.owner:  # it left while this heartbeat waited for its turn
            return Heartbeat("left")
        try:
            if self.home.contested:
                self.home.contested = False
                self.registry.client.connection_pool.disconnect()
            facts, asked, heard = self._repeat_if_closed(self._send_heartbeat)
        except RedisError:
            self.silence.interrupt()
            self._loop_silence.interrupt()
            self._last_ms = 0
            self._find_successor()
            raise
        if heard.status == "ok":
            self._note(facts, heard, asked)
        else:
            # Missing: a part of what the server knew of this owner was deleted or evicted, and no
            # peer has declared it dead: it registers again under its name. Unknown: all of that is
            # gone, perhaps with the database. The tombstone of a reaped owner stays for a day only,
            # so the owner cannot know whether it was declared dead, and takes a new name.
            self.register({}, lost=heard.status.replace("missing", ""))
        return heard

    def _send_heartbeat(self) -> tuple[Facts, float, Heartbeat]:
        """Send one heartbeat; returns what it told, when it was sent (``clock``), and the reply."""
        facts, asked = self._known(), clock()
        changed = facts.dump()
        if self._socket is self._registered_on:
            # The pulse may have told another state meanwhile.
            changed = dict(changed.items() - self.facts.dump().items(), state=facts.state)
        # Else all: a server that came back from an older snapshot has an older record, and would
        # keep each fact that does not change again.
        return facts, asked, self.registry.heartbeat(facts, self._last_ms, changed)

    def _repeat_if_closed(self, act: Callable[[], T]) -> T:
        """Do what may be done twice by the heartbeat connection. Where the server, or a proxy,
        closed that while it lay idle, do it by a new one at once: that is no failure, and to count
        it as one would end the staleness that this observer has watched so far."""
        connection: Any = self.registry.client.connection
        lay_idle = connection._sock is not None
        if lay_idle and closed_while_idle(connection):
            connection.disconnect()
            lay_idle = False
        try:
            return act()
        except RedisConnectionError as exc:
            if not lay_idle:
                raise
            logger.debug("The heartbeat connection was closed (%s); repeating by a new one.", exc)
        return act()

    def _note(self, facts: Facts, heard: Heartbeat, asked: float) -> None:
        if self.facts.owner and not self._last_ms:
            self.overdue.append(self._distrust_connections)
        before, self.home.run_id = self.home.run_id, facts.run_id
        if before not in ("", facts.run_id):
            # Where everybody else was, a doubt may have been cleared meanwhile.
            self.in_flight.doubt = True
            self.in_flight.lost_jobs.server_restarted_at = time()
            # What was watched at the server before says nothing of this one.
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
        self._last_ms = heard.now
        self._heard = (*self._heard[-1:], heard.now)
        self.silence.note(heard.quiet, monotonic())
        self.neighbours = heard.neighbours
        self.in_flight.expires = facts.lists
        self.in_flight.suspects = heard.probation
        self.in_flight.parking.heard(heard.now, heard.due, asked)
        if facts.state != HUNG:
            self.in_flight.permit.heard(facts.owner, asked)

    def leave(self, tombstone: float) -> int:
        """The last that is said, unless it is refused; returns what ``Registry.leave`` does."""
        left = self._repeat_if_closed(partial(self.registry.leave, self.facts, tombstone))
        if left <= 0:
            self.facts = self.facts.with_(owner="", lists={})
            # Nobody uses it from here on; the server may close it before the next join does.
            self.registry.client.connection_pool.disconnect()
        return left

    @property
    def state(self) -> str:
        if self.stopping and not self.failing:
            return STOPPING
        return HUNG if self._hung_at else "running"

    def watch_loop(self) -> None:
        """See, once a second, whether the loop turns; who is not heard has watched nothing."""
        turns, now = 0 if self.stopping else self.in_flight.runner.turns(), monotonic()
        self._loop_silence.note({"loop": turns}, now)
        still = self._loop_silence.silent_for("loop", turns, now) or 0.0
        if turns and still >= max(self.config.owner_ttl, LONGEST_SLEEP):
            self._hung_at = turns
            # Before that is said: whoever hears it gives the jobs to others.
            self.in_flight.permit.end()
        elif turns != self._hung_at:
            self._hung_at = 0

    def was_lost(self, how: str, owner: str, new: str = "") -> None:
        """Say that an owner of ours is none any more, and which running jobs that concerns."""
        logger.warning(LOST[how], owner)
        self.in_flight.lose_all(owner)
        if new:
            self._log_successor(owner, new)
        else:
            # It learned that when its last channel closed: a connection that breaks takes all of
            # them. The next channel registers the process under another name.
            self._lost_name = owner

    def _log_successor(self, owner: str, new: str) -> None:
        logger.warning("Owner %s goes on as owner %s.", owner, new)

    def _distrust_connections(self) -> None:
        """What idles may be as dead, without showing it: a firewall says nothing."""
        self.in_flight.release_connection()
        self.client.connection_pool.disconnect(inuse_connections=False)
        self.outages += 1

    def _find_successor(self) -> None:
        """Go on at the server that took ours' place: it knows a late heartbeat of ours (the primary
        of last week, come back with its data, does not), and takes more (a replica does not)."""
        for params in self.elsewhere:
            if self.is_at(params):
                continue
            with suppress(RedisError), self.registry_at(params) as registry:
                if registry.last_heard(self.facts.owner) in self._heard:
                    registry.heartbeat(self.facts, 0, {})
                    return self.move(params)

    @contextmanager
    def registry_at(self, params: Params) -> Iterator[Registry]:
        client = self.connect(params)
        try:
            yield Registry(Database(client, self.config))
        finally:
            client.connection_pool.disconnect()

    def leave_pool(self) -> None:
        """Close what lies idle, unless a channel has use for it."""
        cast("SharedPool", self.client.connection_pool).leave(self)

    def is_at(self, params: Params) -> bool:
        return place_of(params) == place_of(self.params)

    def move(self, params: Params) -> None:
        """Everybody has the client, and so comes along; what is under way fails by itself."""
        owner = self.facts.owner
        logger.warning("Owner %s goes on at the server that took its server's place.", owner)
        old, self.params = self.client.connection_pool, without_retries(params)
        self.client.connection_pool = self._pool()
        old.disconnect(inuse_connections=False)
        self.in_flight.doubt = True
