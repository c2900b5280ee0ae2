"""How a process becomes an owner, and ceases to be one: registered before its first claim, heard
until its last ack."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from redis.exceptions import RedisError

from ..errors import ForkedConnection
from ..model.config import Config
from ..model.log_text import one_line_each
from ..model.process import own_pid
from ..store.holdings import Holdings
from ..store.private_lists import Claims
from ..store.registry import Heartbeat
from ..store.wire.connections import Params
from ..store.wire.server import check_server
from .heart import Heart
from .heartbeats import Heartbeats
from .in_flight.lost_runs import LostRuns
from .in_flight.runner import CONSUMER, Runner

logger = one_line_each(logging.getLogger(__name__))

REGISTRATIONS = 3  # times in a row that a claim may find its owner unregistered

#: Queue lists that stay registered although nobody claims from them, at most: to come back to one
#: is free then, but all who look at this owner read them.
MANY_UNUSED = 100

BLOCK_TIMEOUT = 20  # seconds a blocking claim may take; one of a dead process can land until then

T = TypeVar("T")


class Membership:
    """This process in the registry of one database, shared by all its channels there, with the
    options of whoever came first. ``elsewhere``: servers that may take that server's place.
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
        self.heart = Heart(params, elsewhere, config, runner)
        self.client = self.heart.client  # for all but the heart and the blocking reads
        self.leases = self.heart.in_flight
        self.database = self.leases.database
        self.settlement = LostRuns(self.leases)
        self.overdue = self.heart.overdue  # also what failed while the server was away
        self._users: dict[int, Mapping[str, int]] = {}  # channels -> what each claims from
        #: Held over whole conversations with the server; the heart's thread never takes it.
        self._lock = threading.RLock()
        self._heartbeats: Heartbeats | None = None

    @property
    def name(self) -> str:
        """``host|pid|nonce``; empty while it is not registered."""
        return self.heart.facts.owner

    def check_process(self) -> None:
        """Raise ForkedConnection in a child that inherited this; it would claim for its parent."""
        if self.pid != own_pid():
            raise ForkedConnection(
                f"this connection was made by process {self.pid}, before process {own_pid()} was "
                "forked: open a new one in the child"
            )

    def join(self, user: int, lists: Mapping[str, int]) -> None:
        """Have the server know this process and the queue lists (-> ms of x-expires) that a channel
        claims from; raises UnsupportedBroker where it cannot carry the guarantee."""
        with self._lock:
            first, registered = not self.name, self.heart.facts.lists
            self._users[user] = lists
            self.heart.consumed = self._consumed()
            new = {name: ms for name, ms in lists.items() if registered.get(name) != ms}
            if not first and not new:
                return
            if first:
                check_server(self.client, self.config.global_keyprefix)
                self.heart.stopping = self.heart.failing = False  # it left, and comes back
            self._by_heart(partial(self.heart.register, new, unused=self._unused()))
            if self._heartbeats is None:
                self._heartbeats = Heartbeats(self.heart)
                self._heartbeats.start()

    def _consumed(self) -> frozenset[str]:
        """Return the queue lists from which some channel claims."""
        return frozenset(chain(*self._users.values()))

    def _unused(self) -> Collection[str]:
        """Queue lists from which nobody claims any more, once they are many; sure to be empty."""
        unused = self.heart.facts.lists.keys() - self._consumed()
        if len(unused) < MANY_UNUSED or not self.leases.lost_claims.none_left:
            return ()
        return unused - Holdings(self.database).of([self.name])[self.name].lists.keys()

    def _by_heart(self, act: Callable[[], T]) -> T:
        return self._heartbeats.ask(act) if self._heartbeats is not None else act()

    def heartbeat(self) -> Heartbeat:
        return self._by_heart(self.heart.heartbeat)

    def follow(self, params: Params) -> bool:
        """Go on at the server our consumer went to; False if it is none of ours."""
        with self._lock:
            if self.heart.is_at(params):
                return True
            if self.name:
                # Replication keeps the order of writes: a server that has not heard of this owner
                # has none of its claims either.
                with self.heart.registry_at(params) as registry:
                    if not registry.knows(self.name):
                        return False
            self.heart.move(params)
            return True

    def claim(self, lists: Sequence[str], *asked: Any) -> Claims:
        """As ``InFlight.claim``; registers first when the server does not know this owner."""
        for _ in range(REGISTRATIONS):
            claims = self.leases.claim(self.name, lists, *asked)
            if claims.registered:
                break
            self.heartbeat()
        return claims

    def unland(self, owner: str, lists: Iterable[str]) -> None:
        """Give back what landed for an owner that is, or was, this process's; if need be later."""
        expires = {name: self.leases.expires.get(name, 0) for name in lists}
        try:
            self.leases.lists.unland(owner, expires)
        except RedisError:
            self.overdue.append(partial(self.leases.lists.unland, owner, expires))

    def catch_up(self) -> None:
        """Do what is overdue, and send what waits; what cannot be done now waits on."""
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
        self.leases.flush()
        self.leases.lost_jobs.examine()

    def leave(self, user: int, *, answered: bool = True) -> None:
        """A channel is done: settle; with the last one, and nothing held, the process leaves. Never
        raises. Not ``answered``: a blocking claim may still land; a tombstone waits for it."""

        def settle() -> None:
            try:
                self._settle()
            finally:  # whatever waits still, this channel is no reason to stay registered
                with self._lock:
                    self._users.pop(user, None)
                    self.heart.consumed = self._consumed()
                    if not self._users and self.name and not len(self.leases.jobs):
                        self._end(tombstone=0 if answered else BLOCK_TIMEOUT)

        # Where no channel comes after this one, nobody else would send the rest.
        if exc := self._try(settle, 2):
            logger.warning(
                "Could not settle at the channel's close: %s. What is left stays in the "
                "private lists; it is settled when the server answers, or recovered.",
                exc,
            )

    def _settle(self) -> None:
        self.leases.flush()
        if self.leases.doubt:
            self.leases.lost_claims.reconcile(self.name, self.heart.facts.lists)
        self.leases.lost_jobs.examine()

    def _try(self, act: Callable[[], object], tries: int) -> Exception | None:
        """Do it, at the last of some tries if need be; the error if that failed, too. The first may
        only learn that idle connections are lost, and the next that the heart's is."""
        for _ in range(tries):
            try:
                act()
                return None
            except (RedisError, OSError) as exc:
                self.client.connection_pool.disconnect(inuse_connections=False)
                error = exc
        return error

    def leave_for_good(self) -> None:
        if self.pid != own_pid() or not self.name:
            return

        def settle() -> None:
            self._settle()
            if not self.heart.failing:
                self.leases.requeue_all()
            elif self.leases.requeue_idle():
                return  # still registered: a peer finds this process gone, and strikes what it ran
            self.leases.lost_jobs.examine()
            self._users.clear()
            self._end(tombstone=0)

        with self._lock:
            if exc := self._try(settle, 3):
                logger.warning(
                    "Owner %s could not leave in order (%s); its jobs are recovered by another "
                    "worker's reaper.",
                    self.name,
                    exc,
                )
                if self._heartbeats is not None:
                    # To live on would keep its jobs from everybody else.
                    self._heartbeats.stopped = True

    def _end(self, tombstone: float) -> None:
        owner = self.name
        left = self._by_heart(partial(self.heart.leave, tombstone))
        if left > 0:
            logger.warning(
                "Owner %s still has %d jobs and stays registered: another worker recovers them "
                "when this process has ended.",
                owner,
                left,
            )
            return
        if left < 0:
            self.heart.was_lost("reaped", owner)
        self._heartbeats = None
        self.leases.release_connection()
        self.heart.leave_pool()
