"""This process as an owner of jobs: its registration, its leases, its settlement, its heartbeats.

The transport joins before its first claim and leaves when a channel closes; the fetch loop claims;
a worker's maintenance thread calls ``catch_up``, in a plain consumer the fetch loop does;
``process_owners`` makes owners and ends them at the exit of the process. If the process dies, its
record and its jobs stay on the server, and a peer's reaper recovers them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from time import time
from typing import Any, TypeVar, cast

from redis import Redis
from redis.exceptions import RedisError

from ..errors import ForkedConnection
from ..model.config import Config
from ..model.facts import HUNG, Facts
from ..model.job import digest
from ..model.log_text import one_line_each
from ..model.place import Place
from ..model.process import ProcessImage, own_pid
from ..model.silence import Silence
from ..store.database import Database
from ..store.holdings import Holdings
from ..store.private_lists import PrivateLists
from ..store.redis.clients import Home
from ..store.redis.connections import Params, without_retries
from ..store.redis.pools import SharedPool, shared_pool
from ..store.redis.server import check_server
from ..store.registry import Heartbeat
from .heartbeat import HeartbeatSession
from .heartbeat_thread import HeartbeatThread
from .in_flight.executor import CONSUMER, Executor
from .in_flight.in_flight import Fetched, InFlight
from .in_flight.settlement import Settlement
from .in_flight.suspect_claims import SuspectClaims

logger = one_line_each(logging.getLogger(__name__))

REGISTRATIONS = 3  # times in a row that a claim may find its owner unregistered

#: Number of queue lists from which no channel claims any more at which they are unregistered. Up to
#: that they stay, so that a channel that comes back to one need not register it again. More would
#: cost: each observer of this owner reads all of them.
MANY_UNUSED = 100

BLOCK_TIMEOUT = 20  # seconds a blocking claim may take; one of a dead process can land until then

T = TypeVar("T")

#: How the server lost an owner -> what the log says.
LOST = {
    "reaped": "Worker declared dead (owner=%s): the server got no heartbeat of it within its "
    "limits. The process was frozen, its event loop hung, or it was cut off from the server. A "
    "peer recovered its jobs: those that run here may run twice, the others do not start here.",
    "unknown": "The server no longer knows owner=%s: its keys were flushed, deleted or evicted, "
    "or the server restarted empty. Jobs of this worker that the server still has are requeued; "
    "those that run may run twice; those that it no longer has are logged as lost. Look for "
    "FLUSHALL, FLUSHDB and DEL, set maxmemory-policy to noeviction, and turn persistence on.",
}


class Owner:
    """This process in one database, shared by all its channels there, with the options of the first
    channel. Thread-safe. Its session calls it as its ``HeartbeatListener``.

    Arguments:
        elsewhere: the failover targets: servers that may take over from that of ``params``.
        runner: runs the jobs.
    """

    def __init__(
        self,
        params: Params,
        config: Config,
        elsewhere: Sequence[Params] = (),
        runner: Executor = CONSUMER,
    ) -> None:
        self.config = config
        self.runner = runner
        self.pid = own_pid()
        home, params = Home(), without_retries(params)
        if hasattr(params.get("connection_class"), "replaceable"):  # made by ``following``
            params["home"] = home  # its connections refuse a server without the heartbeats
        #: For all commands but those of the heartbeats and of the blocking reads.
        self.client = Redis(connection_pool=_pool_for(params))
        self.database = Database(self.client, config)
        self.database.is_registered = runner.is_registered
        #: Its jobs in flight, each with a lease.
        self.leases = InFlight(self.database, runner)
        self.suspects = SuspectClaims(self.leases)
        self.settlement = Settlement(self.leases, self.suspects)
        first_record = Facts.mine("", ProcessImage.current(), config)
        self.heartbeat_session = HeartbeatSession(
            params, config, home, first_record, listener=self, failover_targets=elsewhere
        )
        #: Set (by a signal handler, too) when the process is to stop: it claims and starts no more.
        self.stopping = False
        #: Set if the process stops by an error of its own: the jobs that it still runs at its end
        #: are to blame, as after any death.
        self.failing = False
        #: Deferred calls, which ``catch_up`` makes: those that take long, those that come up in a
        #: thread that must not wait (the heartbeat thread), and those that failed while the server
        #: was away.
        self.overdue: deque[Callable[[], object]] = deque()
        #: Ids of its blocking connections, which the reaper closes when it reaps this owner.
        self.blocking: set[int] = set()
        #: Its blocking reads that wait at this moment.
        self.armed_reads: set[object] = set()
        #: Its place among the owners of the same queue lists, as of the last heartbeat.
        self.place = Place()
        #: As in ``Facts``; the maintenance thread sets it, and the next heartbeat sends it.
        self.started_jobs: tuple[tuple[int, int], ...] = ()
        #: How many times the connections were replaced after failed heartbeats.
        self.outages = 0
        self._lists_by_user: dict[int, Mapping[str, int]] = {}
        #: The queue lists from which some channel claims.
        self._consumed: frozenset[str] = frozenset()
        self._group = ""  # a digest of these
        #: The name under which a peer declared this process dead, until it has another one.
        self._lost_name = ""
        #: Held over whole conversations with the server; the heartbeat thread never takes it.
        self._lock = threading.RLock()
        self._heartbeat_thread: HeartbeatThread | None = None

    # -- what the server knows of it

    @property
    def facts(self) -> Facts:
        """The owner record as the server has it."""
        return self.heartbeat_session.facts

    @property
    def name(self) -> str:
        """``host|pid|nonce``; empty while it is not registered."""
        return self.facts.owner

    @property
    def params(self) -> Params:
        """The parameters of its server; after a failover those of another one."""
        return self.heartbeat_session.params

    @property
    def neighbours(self) -> tuple[str, ...]:
        """The other owners of this host, as of the last heartbeat."""
        return tuple(name for name in self.heartbeat_session.neighbours if name != self.name)

    @property
    def silence(self) -> Silence:
        """The staleness of the other owners, as this process has watched it."""
        return self.heartbeat_session.silence

    @property
    def private_lists(self) -> PrivateLists:
        """The private lists on the server, of this owner and of others."""
        return self.leases.pending.lists

    # -- from the first channel to the last

    def check_process(self) -> None:
        """Raise ForkedConnection in a child that inherited this; it would claim for its parent."""
        if self.pid != own_pid():
            raise ForkedConnection(
                f"this connection was made by process {self.pid}, before process {own_pid()} was "
                "forked: open a new one in the child"
            )

    def join(self, user: int, lists: Mapping[str, int]) -> None:
        """Register this process and the queue lists (-> ms of x-expires) that a channel (``user``)
        claims from, and start the heartbeats.

        Raises UnsupportedBroker if the server cannot carry the guarantee.
        """
        with self._lock:
            first, registered = not self.name, self.facts.lists
            self._lists_by_user[user] = lists
            self._note_consumed()
            new = {name: ms for name, ms in lists.items() if registered.get(name) != ms}
            if not first and not new:
                return
            if first:
                check_server(self.client, self.config.global_keyprefix)
                self.stopping = self.failing = False  # it left, and comes back
            register = self.heartbeat_session.register
            self._by_heartbeat_thread(partial(register, new, unused=self._unused()))
            if self._lost_name:
                _log_successor(self._lost_name, self.name)
                self._lost_name = ""
            if self._heartbeat_thread is None:
                self._heartbeat_thread = HeartbeatThread(self.heartbeat_session)
                self._heartbeat_thread.start()

    def _note_consumed(self) -> None:
        self._consumed = names = frozenset(chain(*self._lists_by_user.values()))
        self._group = digest("\n".join(sorted(names)).encode())[:12] if names else ""

    def _unused(self) -> Collection[str]:
        """Return the queue lists from which no channel claims any more, if they are many and this
        owner surely has no job of them."""
        unused = self.facts.lists.keys() - self._consumed
        if len(unused) < MANY_UNUSED or not self.leases.lost_claims.none_left:
            return ()
        return unused - Holdings(self.database).of([self.name])[self.name].lists.keys()

    def _by_heartbeat_thread(self, act: Callable[[], T]) -> T:
        thread = self._heartbeat_thread
        return thread.ask(act) if thread is not None else act()

    def heartbeat(self) -> Heartbeat:
        """Send a heartbeat now; return the server's answer."""
        return self._by_heartbeat_thread(self.heartbeat_session.beat)

    def follow(self, params: Params) -> bool:
        """Move to the server to which the consumer moved; return False if that server does not
        know this owner."""
        session = self.heartbeat_session
        with self._lock:
            if session.is_at(params):
                return True
            if self.name:
                # Replication keeps the order of writes: a server without the record of this owner
                # has none of its claims either.
                with session.registry_at(params) as registry:
                    if not registry.knows(self.name):
                        return False
            session.move(params)
            return True

    def claim(self, lists: Sequence[str], *asked: Any) -> Fetched:
        """Claim, as ``InFlight.claim``; register first if the server does not know this owner."""
        for _ in range(REGISTRATIONS):
            fetched = self.leases.claim(self.name, lists, *asked)
            if fetched.claims.registered:
                break
            self.heartbeat()
        return fetched

    def unland(self, owner: str, lists: Iterable[str]) -> None:
        """Return to its queues what has landed for ``owner``, a present or former name of this
        process. If the server cannot be asked now, that is a deferred call."""
        expires = {name: self.leases.pending.expires.get(name, 0) for name in lists}
        try:
            self.private_lists.unland(owner, expires)
        except BaseException as exc:  # also what a signal handler raises: no claim names the job
            self.overdue.append(partial(self.private_lists.unland, owner, expires))
            if not isinstance(exc, RedisError):
                raise

    def reconcile(self) -> int:
        """Requeue jobs that the server has for this owner without a lease; return how many."""
        return self.leases.lost_claims.reconcile(self.name, self.facts.lists)

    @property
    def busy(self) -> bool:
        """Whether a job runs, or may run."""
        return self.runner.busy(self.leases.has_unsettled)

    @property
    def has_deferred_calls(self) -> bool:
        """True if ``catch_up`` has deferred calls to make, or lost jobs to examine."""
        return bool(self.overdue or self.leases.pending.lost_jobs)

    def catch_up(self) -> None:
        """Make the deferred calls and send what is pending; what fails now stays deferred."""
        # First: one may replace the connections by which the acks would go.
        for _ in range(len(self.overdue)):
            try:
                act = self.overdue.popleft()
            except IndexError:  # another thread was faster
                break
            try:
                act()
            except BaseException as exc:
                # An error of another kind would only repeat. The end of a greenlet, or what a
                # signal handler raises, says nothing of the call: a landed job would stay unseen.
                if isinstance(exc, (RedisError, OSError)) or not isinstance(exc, Exception):
                    self.overdue.append(act)
                raise
        self.leases.flush()
        self.leases.pending.lost_jobs.examine()

    def leave(self, user: int, *, may_land: bool = False) -> None:
        """Settle what a channel (``user``) leaves; with the last channel, and if no lease is left,
        unregister. An error of the server is logged, not raised.

        Arguments:
            may_land: whether a blocking read may still bring a job: then a tombstone stays on the
                server, by which reapers find and requeue such a job.
        """

        def settle() -> None:
            try:
                self._settle()
            finally:  # pending leases are no reason to stay registered for this channel
                with self._lock:
                    self._lists_by_user.pop(user, None)
                    self._note_consumed()
                    if not self._lists_by_user and self.name and self.leases.is_empty:
                        self._end(tombstone=BLOCK_TIMEOUT if may_land else 0)

        # Where no channel comes after this one, nothing else would send the rest.
        if exc := self._try(settle, 2):
            logger.warning(
                "Could not settle at the channel's close: %s. What is left stays in the "
                "private lists; it is settled when the server answers, or recovered.",
                exc,
            )

    def _settle(self) -> None:
        """Send what is pending, and reconcile if a reply was lost."""
        self.leases.flush()
        if self.leases.doubt:
            self.reconcile()
        self.leases.pending.lost_jobs.examine()

    def _try(self, act: Callable[[], object], tries: int) -> Exception | None:
        """Call ``act`` until it succeeds, ``tries`` times at most; return its last error. If the
        server has restarted, one try may fail by an idle connection of the pool that is lost, and
        another by that of the heartbeats."""
        for _ in range(tries):
            try:
                act()
                return None
            except (RedisError, OSError) as exc:
                self.client.connection_pool.disconnect(inuse_connections=False)
                error = exc
        return error

    def leave_for_good(self) -> None:
        """Requeue all jobs and unregister: the process ends. If it fails by an error of its own,
        the jobs that run stay, and so does its record: a peer finds this process gone, and the jobs
        get a strike."""
        if self.pid != own_pid() or not self.name:
            return

        def settle() -> None:
            self._settle()
            if not self.failing:
                self.leases.requeue_all()
            elif self.leases.requeue_idle():
                return
            self.leases.pending.lost_jobs.examine()
            self._lists_by_user.clear()
            self._end(tombstone=0)

        with self._lock:
            if exc := self._try(settle, 3):
                logger.warning(
                    "Owner %s could not leave in order (%s); its jobs are recovered by another "
                    "worker's reaper.",
                    self.name,
                    exc,
                )
                if self._heartbeat_thread is not None:
                    # A living owner would keep its jobs from all other workers.
                    self._heartbeat_thread.stopped = True

    def _end(self, tombstone: float) -> None:
        owner = self.name
        left = self._by_heartbeat_thread(partial(self.heartbeat_session.leave, tombstone))
        if left > 0:
            logger.warning(
                "Owner %s still has %d jobs and stays registered: another worker recovers them "
                "when this process has ended.",
                owner,
                left,
            )
            return
        if left < 0:
            self._give_up(owner, "reaped", "")
        self._heartbeat_thread = None
        self.leases.release_connection()
        cast("SharedPool", self.client.connection_pool).leave(self)

    # -- HeartbeatListener: see there who calls these methods, and what they must not do

    def describe(self, record: Facts) -> Facts:
        runner = self.runner
        return record.with_(
            node=runner.node,
            tasks=runner.tasks,
            connections=tuple(self.blocking),
            pool=tuple(runner.pids()),
            unconsumed=tuple(sorted(record.lists.keys() - self._consumed)),
            group=self._group,
            started_jobs=self.started_jobs,
        )

    def waits(self) -> bool:
        return bool(self.armed_reads)

    def loop_ticks(self) -> int:
        return self.runner.turns()

    def on_answer(self, record: Facts, answer: Heartbeat, asked: float) -> None:
        self.leases.pending.expires = record.lists
        self.suspects.lists = answer.probation
        self.place = answer.place
        self.leases.pending.parking.heard(answer.now, answer.due, asked)
        if record.state != HUNG:
            self.leases.permit.heard(record.owner, asked)

    def on_hung(self) -> None:
        self.leases.permit.end()

    def on_outage_over(self) -> None:
        self.overdue.append(self._replace_connections)

    def on_possible_rollback(self) -> None:
        self.leases.doubt = True

    def on_server_restarted(self) -> None:
        self.leases.doubt = True
        self.leases.pending.lost_jobs.server_restarted_at = time()

    def on_owner_lost(self, owner: str, how: str, new: str) -> None:
        self.overdue.append(partial(self._give_up, owner, how, new))
        if how == "unknown":
            self.overdue.append(self.leases.pending.lost_jobs.record_data_loss)

    def on_failover(self, params: Params) -> None:
        # All users of the client come along; commands that are under way fail by themselves.
        old, self.client.connection_pool = self.client.connection_pool, _pool_for(params)
        old.disconnect(inuse_connections=False)
        self.leases.doubt = True

    def _replace_connections(self) -> None:
        """Close idle connections: after an outage they may be dead and not show it, since a
        firewall drops packets without an answer."""
        self.leases.release_connection()
        self.client.connection_pool.disconnect(inuse_connections=False)
        self.outages += 1

    def _give_up(self, owner: str, how: str, new: str) -> None:
        """Log that the server lost a name of this process (``how``). Announce for each of its
        running jobs that ownership was lost (log, counter, signal), and requeue the others.
        ``new``: the name that this process has now, if any."""
        logger.warning(LOST[how], owner)
        self.leases.lose_all(owner)
        if new:
            _log_successor(owner, new)
        else:
            # Its last channel has closed. The next one registers this process under another name.
            self._lost_name = owner


def _log_successor(owner: str, new: str) -> None:
    logger.warning("Owner %s goes on as owner %s.", owner, new)


def _pool_for(params: Params) -> SharedPool:
    """Return the pool of this process at a server. Its channels use the same pool, unless Sentinel
    or a cluster may name another primary to one of them (those have a ``home``)."""
    if params.get("slot") is None and "connection_pool" not in params:
        params = {name: value for name, value in params.items() if name != "home"}
    return shared_pool(params)
