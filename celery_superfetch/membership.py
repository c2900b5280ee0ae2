"""A process as an owner: registered before its first claim, heard until its last ack."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from redis import ConnectionPool, Redis
from redis.exceptions import RedisError

from .config import Config
from .errors import ForkedConnection
from .facts import Facts
from .failover import knows, promoted
from .heart import Heart
from .heartbeats import RETRY_INTERVAL, Heartbeats, heart_client
from .in_flight import InFlight
from .job import Job
from .keys import Keys
from .owner import ProcessImage, mint_owner, own_pid
from .places import Params, patient, place_of, without_retries
from .preflight import check_server
from .private_list import Claims
from .pulse import Pulse, threads_are_greenlets
from .registry import Heartbeat, Registry
from .watch import Watch

logger = logging.getLogger(__name__)

#: A claim finds its owner unregistered at most this often in a row before it gives up.
REGISTRATIONS = 3

#: Seconds a blocking claim may take; a claim of a dead process can land until then.
BLOCK_TIMEOUT = 20


class Membership:
    """This process in the registry of one database, shared by all its channels there.

    Arguments:
        params: arguments of ``redis.ConnectionPool`` for the broker's database.
        config: options of whoever came first; the others of the process share them.
        elsewhere: the same for servers that may take its place.
    """

    def __init__(self, params: Params, config: Config, elsewhere: Sequence[Params] = ()) -> None:
        self.config = config
        self.keys = Keys(config.global_keyprefix)
        self.pid = own_pid()
        self.params: Params = without_retries(params)
        self.elsewhere = [without_retries(other) for other in elsewhere]
        self.client = Redis(connection_pool=ConnectionPool(**patient(self.params)))
        self.in_flight = InFlight(self.client, self.keys, config)
        self.registry = Registry(self.client, self.keys, config)
        #: Who is silent, as this process saw it by its own heartbeats.
        self.watch = Watch(longest_gap=2 * config.heartbeat_interval + RETRY_INTERVAL)
        #: How often the heart lost its connection and found the server again.
        self.outages = 0
        #: Owners registered on this host at the last heartbeat.
        self.neighbours: tuple[str, ...] = ()
        #: Called with no argument after registration and before the first claim.
        self.on_joined: list[Callable[[], object]] = []
        #: What could not be done while the server was away; ``catch_up`` does it.
        self.overdue: deque[Callable[[], object]] = deque()
        #: Asked at each heartbeat for the pool processes as ``(pid, start time)``.
        self.pool: Callable[[], Sequence[tuple[int, str]]] = tuple
        self.heart = Heart(self.connect, self.keys, config)
        self._facts = Facts.mine("", ProcessImage.current(), config)
        self._written: dict[str, str] = {}
        self._last_ms = 0
        self._unheard = False
        #: Our last two heartbeats: whoever knows one is our server, or its replica.
        self._heard: tuple[int, ...] = ()
        self._joined = False
        self._users: set[int] = set()
        self._lock = threading.RLock()
        self._heartbeats: Heartbeats | None = None
        self._stopping = False

    def connect(self) -> Redis:
        """A client with a connection that nobody else uses, to where the server is now."""
        return heart_client(self.params, self.config.heartbeat_interval)

    def check_process(self) -> None:
        """Refuse to claim in a child that inherited this; its claims would be its parent's.

        Raises:
            ForkedConnection: this membership was made before the fork.
        """
        if self.pid != own_pid():
            raise ForkedConnection(
                f"this connection was made by process {self.pid}, before process {own_pid()} was "
                "forked: open a new one in the child"
            )

    # -- identity and registration

    @property
    def owner(self) -> str:
        """The identity claims are made under; empty before the first registration."""
        return self._facts.owner

    @property
    def facts(self) -> Facts:
        """What the registry was told last."""
        return self._facts

    @property
    def joined(self) -> bool:
        """True while this process is registered."""
        return self._joined

    def join(self, user: int, lists: Mapping[str, int]) -> None:
        """Register the process and these queue lists; returns when the server knows both.

        Arguments:
            user: identity of the channel that is going to claim.
            lists: queue list -> ms of its x-expires (0: none).

        Raises:
            redis.exceptions.RedisError: the server could not be asked; nothing is claimed.
            UnsupportedBroker: it cannot carry the guarantee.
        """
        with self._lock:
            first = not self._joined
            self._users.add(user)
            new = {name: ms for name, ms in lists.items() if self._facts.lists.get(name) != ms}
            if not first and not new:
                return
            if first:
                check_server(self.client)
            self.in_flight.expires.update({name: ms for name, ms in new.items() if ms})
            self._facts = self._facts.with_(lists={**self._facts.lists, **new})
            self._register(mint=not self.owner)
            self._joined = True
            if self._heartbeats is None:
                interval, native = self.config.heartbeat_interval, threads_are_greenlets()
                pulse = Pulse(self, self.connect, interval) if native else None
                self._heartbeats = Heartbeats(self, pulse)
                self._heartbeats.start()
        if first:
            for hook in list(self.on_joined):
                hook()

    def _register(self, mint: bool) -> None:
        """Write all facts; under a new nonce when ``mint`` or when the old one was reaped."""
        for _ in range(REGISTRATIONS):
            if mint:
                self._facts = self._facts.with_(owner=mint_owner(self._facts.process))
            self._note_what_changes()
            asked = monotonic()
            now = self.heart.registry.register(self._facts)
            if now is not None:
                self.in_flight.leases.heard(asked)
                self._written = self._facts.dump()
                # The first look: it saw nobody, and from here on it sees who is not heard.
                self.watch.interrupt()
                self.watch.look({}, monotonic())
                self._last_ms = now
                self._heard = (now,)
                self.in_flight.probation = self.heart.registry.on_probation()
                return
            mint = True

    def _renew(self) -> None:
        """This owner was reaped: go on as a new one; old claims stay bound to the old lists."""
        old = self.owner
        self._was_reaped()
        self._register(mint=True)
        logger.warning("Owner %s goes on as owner %s.", old, self.owner)

    def _was_reaped(self) -> None:
        """Say that this owner was taken for dead, and which running jobs that concerns."""
        logger.warning(
            "This process was taken for dead as owner %s: it had not been heard for longer than "
            "its limits allow (frozen, or cut off from the server). Its jobs were given back: "
            "those that run may run twice, the others are dropped here without being started.",
            self.owner,
        )
        self.in_flight.taken_away(self.owner)

    # -- heartbeat

    def heartbeat(self) -> Heartbeat:
        """One heartbeat, by the heart's own connection; registers again what is missing.

        Raises:
            redis.exceptions.RedisError: it was not heard; what the watch knew is void.
        """
        with self._lock:
            if not self._joined:  # it left while this heartbeat waited for its turn
                return Heartbeat("left")
            try:
                self._note_what_changes()
                fields = self._facts.dump()
                changed = {k: v for k, v in fields.items() if self._written.get(k) != v}
                asked = monotonic()
                beat = self.heart.registry.heartbeat(self._facts, self._last_ms, changed)
            except RedisError:
                self.watch.interrupt()
                self._last_ms = 0
                self._unheard = True
                self._look_elsewhere()
                raise
            if self._unheard:
                self._unheard = False
                self._distrust_connections()
            if beat.status == "missing":
                # Somebody deleted the row, or the whole database: the tombstone of a reaped
                # owner stays for a day, so with no facts at all we cannot know, and mint anew.
                row_only = bool(self.client.exists(self.keys.facts(self.owner)))
                self._register(mint=not row_only)
                return beat
            if beat.status == "reaped":
                self._renew()
                return beat
            for job in self.in_flight.long_called_off():
                self.heart.client.hdel(self.keys.running(job.owner), job.claim_id)
            self._written = fields
            self._last_ms = beat.now
            self.in_flight.leases.heard(asked)
            self._heard = (*self._heard[-1:], beat.now)
            self.watch.look(beat.quiet, monotonic())
            self.neighbours = beat.neighbours
            self.in_flight.probation = beat.probation
            return beat

    def _distrust_connections(self) -> None:
        """The heart lost its connection: what idles may be as dead without showing it.

        A firewall that forgets a connection says nothing; a blocking read would wait on it for
        a reply that cannot come.
        """
        self.in_flight.rest()
        self.client.connection_pool.disconnect(inuse_connections=False)
        self.outages += 1

    def _note_what_changes(self) -> None:
        """Bring up to date those facts that change while the owner lives."""
        if self.heart.look():
            self.in_flight.doubt = True
        self._facts = self._facts.with_(
            run_id=self.heart.run_id, connections=self.heart.connections, pool=tuple(self.pool())
        )

    def _look_elsewhere(self) -> None:
        """Go on at the server that took ours' place, if there is one."""
        place = place_of(self.params)
        others = [params for params in self.elsewhere if place_of(params) != place]
        found = promoted(others, self.config, self.keys, self._facts, self._heard)
        if found is not None:
            self._move(found)

    def follow(self, params: Params) -> bool:
        """Go on at the server our consumer went to; False if it is none of ours.

        Raises:
            redis.exceptions.RedisError: it cannot be asked.
        """
        with self._lock:
            if place_of(params) == place_of(self.params):
                return True
            if self.owner and not knows(params, self.keys, self.owner):
                return False
            self._move(without_retries(params))
            return True

    def _move(self, params: Params) -> None:
        logger.warning("Owner %s goes on at the server that took its server's place.", self.owner)
        old, self.params = self.client.connection_pool, params
        # Everybody has this client; what is under way fails by itself.
        self.client.connection_pool = ConnectionPool(**patient(params))
        old.disconnect(inuse_connections=False)
        self.heart.move()
        self.in_flight.doubt = True

    def stopping(self) -> None:
        """The process was told to stop; the heart says so. Safe in a signal handler."""
        self._stopping = True

    @property
    def is_stopping(self) -> bool:
        """True once the process was told to stop: it claims and starts nothing more."""
        return self._stopping

    def said_to_stop(self) -> bool:
        """Whether there is something to say before the next heartbeat is due."""
        if not self._stopping or self._facts.state == "stopping":
            return False
        self._facts = self._facts.with_(state="stopping")
        return True

    def pulse(self) -> Sequence[Any]:
        """The command that says no more than that this owner lives, or that it stops."""
        return self.heart.registry.pulse(self._facts, "stopping" if self._stopping else "")

    # -- claims

    def claim(
        self,
        lists: Sequence[str],
        most: int,
        turn: int,
        confirm: Sequence[Job] = (),
        starts: int = 0,
    ) -> Claims:
        """Claim jobs; registers first when the server does not know this owner.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        for _ in range(REGISTRATIONS):
            claims = self.in_flight.claim(self.owner, lists, most, turn, confirm, starts)
            if claims.registered:
                break
            self.heartbeat()
        return claims

    def catch_up(self) -> None:
        """Do what is overdue: acks, too, while their consumer waits for its next try to connect.

        Raises:
            redis.exceptions.RedisError: the server is still away; what is left waits on.
        """
        if self.in_flight.unsent or self.in_flight.unread:
            self.in_flight.flush()
        for _ in range(len(self.overdue)):
            act = self.overdue.popleft()
            try:
                act()
            except (RedisError, OSError):
                self.overdue.append(act)
                raise

    # -- end

    def leave(self, user: int, *, answered: bool = True) -> None:
        """A channel is done; with the last one, and nothing held, the process leaves.

        At its end (``leave_for_good``) where a pool may yet ask for what was called off.

        Arguments:
            answered: False when a blocking claim may still land; a tombstone waits for it.
        """
        with self._lock:
            self._users.discard(user)
            if self._users or not self._joined or len(self.in_flight):
                return
            if self.in_flight.pool_may_ask:  # the server's mark must outlast this reconnect
                return
            self._end(answered)

    def leave_for_good(self) -> None:
        """The process ends: give back everything and leave, as far as the server answers."""
        if self.pid != own_pid() or not self._joined:
            return
        with self._lock:
            try:
                if self.in_flight.doubt:
                    self.in_flight.reconcile(self.owner, self._facts.lists)
                self.in_flight.flush()
                self.in_flight.give_all_back()
                self._users.clear()
                self._end(answered=True)
            except RedisError as exc:
                if self._heartbeats is not None:
                    self._heartbeats.stop()  # to live on would keep its jobs from everybody else
                logger.warning(
                    "Owner %s could not leave in order (%s); its jobs are recovered by another "
                    "worker's reaper.",
                    self.owner,
                    exc,
                )

    def _end(self, answered: bool) -> None:
        left = self.registry.leave(self._facts, 0 if answered else BLOCK_TIMEOUT)
        if left < 0:
            self._was_reaped()
        elif left:
            logger.warning("Owner %s still has %d jobs and stays registered.", self.owner, left)
            return
        if self._heartbeats is not None:
            self._heartbeats.stop()
        self._heartbeats, self._joined = None, False
        self._facts = self._facts.with_(owner="", lists={}, state="running")
        self._stopping, self.neighbours = False, ()
        self.in_flight.rest()
        if self.heart.client.connection is not None:
            # Nobody uses it from here on; the server may close it before the next join does.
            self.heart.client.connection.disconnect()
