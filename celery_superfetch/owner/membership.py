"""A process as an owner: registered before its first claim, heard until its last ack."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from redis import Redis
from redis.exceptions import RedisError

from ..errors import ForkedConnection
from ..model.config import Config
from ..model.facts import Facts
from ..model.job import Job
from ..model.process import own_pid
from ..store.database import Database
from ..store.private_lists import Claims
from ..store.registry import Heartbeat
from ..store.wire.clients import run_id
from ..store.wire.connections import Params
from ..store.wire.server import check_server
from .gevent_heart import Pulse, threads_are_greenlets
from .heart import Heart
from .heartbeats import Heartbeats
from .home import Home, knows
from .in_flight.in_flight import InFlight
from .in_flight.lost_runs import LostRuns
from .in_flight.runner import CONSUMER, Runner

logger = logging.getLogger(__name__)

#: A claim finds its owner unregistered at most this often in a row before it gives up.
REGISTRATIONS = 3

#: Queue lists, at most, that stay registered although nobody claims from them: to do so again costs
#: nothing then. All who look at this owner read them.
MANY_UNUSED = 100

#: Seconds a blocking claim may take; a claim of a dead process can land until then.
BLOCK_TIMEOUT = 20

T = TypeVar("T")


class Membership:
    """This process in the registry of one database, shared by all its channels there.

    Arguments:
        params: arguments of ``redis.ConnectionPool`` for the broker's database.
        config: options of whoever came first; the others of the process share them.
        elsewhere: the same for servers that may take its place.
        runner: who runs its jobs.
    """

    def __init__(
        self,
        params: Params,
        config: Config,
        elsewhere: Sequence[Params] = (),
        runner: Runner = CONSUMER,
    ) -> None:
        self.config = config
        self.runner = runner
        self.pid = own_pid()
        self.home = Home(params, elsewhere)
        self.database = Database(self.home.client, config)
        self.in_flight = InFlight(self.database, runner)
        self.lost_runs = LostRuns(self.in_flight)
        #: Called with no argument after registration and before the first claim.
        self.on_joined: list[Callable[[], object]] = []
        #: What may take long, or could not be done while the server was away; ``catch_up`` does it.
        self.overdue: deque[Callable[[], object]] = deque()
        self.heart = Heart(self.home, config, self.in_flight, self.overdue)
        #: Channels -> the queue lists that each claims from.
        self._users: dict[int, Mapping[str, int]] = {}
        #: Held over whole conversations with the server; the heart's thread never takes it.
        self._lock = threading.RLock()
        self._heartbeats: Heartbeats | None = None

    @property
    def client(self) -> Redis:
        """A client for all but the heart and the blocking reads."""
        return self.home.client

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
        return self.heart.facts.owner

    @property
    def facts(self) -> Facts:
        """What the registry was told last."""
        return self.heart.facts

    @property
    def joined(self) -> bool:
        """True while this process is registered."""
        return self.heart.joined

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
            first = not self.joined
            self._users[user] = lists
            new = {name: ms for name, ms in lists.items() if self.facts.lists.get(name) != ms}
            if not first and not new:
                return
            if first:
                check_server(self.client, self.config.global_keyprefix)
                self.in_flight.lost_claims.run_id = run_id(self.client)
                self.heart.stopping = False  # it left, and comes back
            self.in_flight.expires.update({name: ms for name, ms in new.items() if ms})
            empty = self._empty()
            self._by_heart(partial(self.heart.register, new, forget=empty))
            for name in empty:
                self.in_flight.expires.pop(name, None)
            if self._heartbeats is None:
                pulse = Pulse(self.heart) if threads_are_greenlets() else None
                self._heartbeats = Heartbeats(self.heart, pulse)
                self._heartbeats.start()
        if first:
            for hook in list(self.on_joined):
                hook()

    def _empty(self) -> Collection[str]:
        """Queue lists from which nobody claims any more, once they are many; sure to be empty."""
        unused = self.facts.lists.keys() - set(chain(*self._users.values()))
        unused -= self.in_flight.jobs.queue_lists
        if len(unused) < MANY_UNUSED or not self.in_flight.knows_all:
            return ()
        return () if self.in_flight.lists.sizes([(self.owner, unused)])[self.owner] else unused

    def _by_heart(self, act: Callable[[], T]) -> T:
        """Let the heart do it: before its thread runs, and after, nobody else uses it."""
        return self._heartbeats.ask(act) if self._heartbeats is not None else act()

    def heartbeat(self) -> Heartbeat:
        """One heartbeat now; registers again what is missing.

        Raises:
            redis.exceptions.RedisError: it was not heard.
        """
        return self._by_heart(self.heart.heartbeat)

    def follow(self, params: Params) -> bool:
        """Go on at the server our consumer went to; False if it is none of ours.

        Raises:
            redis.exceptions.RedisError: it cannot be asked.
        """
        with self._lock:
            if self.home.is_at(params):
                return True
            if self.owner and not knows(params, self.config, self.owner):
                return False
            self.heart.move(params)
            return True

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
        # First: it may be to distrust the connections by which the acks would go.
        for _ in range(len(self.overdue)):
            try:
                act = self.overdue.popleft()
            except IndexError:  # another thread was faster
                break
            try:
                act()
            except (RedisError, OSError):
                self.overdue.append(act)
                raise
        if self.in_flight.outbox.unsent or self.in_flight.outbox.unread:
            self.in_flight.flush()

    # -- end

    def leave(self, user: int, *, answered: bool = True) -> None:
        """A channel is done: settle; with the last one, and nothing held, the process leaves.

        Never raises.

        Arguments:
            answered: False when a blocking claim may still land; a tombstone waits for it.
        """
        for last in (False, True):
            try:
                try:
                    self._settle()
                finally:  # whatever waits still, this channel is no reason to stay registered
                    self._forget(user, answered)
                return
            except (RedisError, OSError) as exc:
                # The first try may only have learned that the idle connections are lost, and
                # where no channel comes after this one, nobody else would send the rest.
                self.client.connection_pool.disconnect(inuse_connections=False)
                if last:
                    logger.warning(
                        "Could not settle at the channel's close: %s. What is left stays in the "
                        "private lists; it is settled when the server answers, or recovered.",
                        exc,
                    )

    def _settle(self) -> None:
        """Send what waits, and give back what lost replies spoke of."""
        self.in_flight.flush()
        if self.in_flight.doubt:
            self.in_flight.reconcile(self.owner, self.facts.lists)

    def _forget(self, user: int, answered: bool) -> None:
        with self._lock:
            self._users.pop(user, None)
            if self._users or not self.joined or len(self.in_flight.jobs):
                return
            self._end(answered)

    def leave_for_good(self) -> None:
        """The process ends: give back everything and leave, as far as the server answers."""
        if self.pid != own_pid() or not self.joined:
            return
        with self._lock:
            try:
                self._settle()
                self.in_flight.requeue_all()
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
        owner = self.owner
        left = self._by_heart(partial(self._last_words, 0 if answered else BLOCK_TIMEOUT))
        if left > 0:
            logger.warning("Owner %s still has %d jobs and stays registered.", owner, left)
            return
        if left < 0:
            self.heart.was_reaped(owner)
        self._heartbeats = None
        self.in_flight.rest()

    def _last_words(self, tombstone: float) -> int:
        left = self.heart.leave(tombstone)
        if left <= 0 and self._heartbeats is not None:
            self._heartbeats.stop()  # here, by its own thread: it says nothing more
        return left
