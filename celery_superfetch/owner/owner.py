"""This process as an owner of jobs: its registration, its leases, its settlement, its heartbeats.

``process_owners`` makes the owners of a process, and ends them when it exits. A channel of the
transport joins before its first claim, claims by its fetch loop, and leaves when it closes. If the
owner cannot unregister then, a thread (``LateLeave``) tries again each second: in a plain consumer,
and after the end of a worker. A worker's maintenance thread calls ``catch_up``; in a plain consumer
the fetch loop does. The heartbeat thread calls the methods of ``HeartbeatListener``.

If the process dies, its record and its jobs stay on the server, and a peer's reaper recovers the
jobs. They are in the owner's *private list* (jobs that it has claimed) and *landing lists* (where a
blocking read puts a job, which *lands* there before it is claimed). Deferred calls are in memory
alone; the reaper also requeues the landed jobs that such a call would have requeued.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from time import monotonic, time
from typing import Any, TypeVar, cast

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from ..errors import ForkedConnection
from ..model.config import Config
from ..model.job import digest
from ..model.log_text import one_line_each
from ..model.owner_rank import OwnerRank
from ..model.owner_record import HUNG, OwnerRecord
from ..model.process import ProcessImage, own_pid
from ..model.staleness import StalenessTracker
from ..store.database import Database
from ..store.in_flight_jobs import InFlightJobs
from ..store.owner_registry import Heartbeat, OwnerRegistry
from ..store.private_lists import PrivateLists
from ..store.redis.clients import PrimaryGuard
from ..store.redis.connections import Params, without_retries
from ..store.redis.pools import SharedPool, shared_pool
from ..store.redis.server import check_server
from .heartbeat import HeartbeatSession
from .heartbeat_thread import HeartbeatThread
from .in_flight.executor import NO_POOL, Executor
from .in_flight.in_flight import Fetched, InFlight
from .in_flight.settlement import Settlement
from .in_flight.suspect_claims import SuspectClaims
from .late_leave import LateLeave

logger = one_line_each(logging.getLogger(__name__))

REGISTRATIONS_MAX = 3  # tries of a claim, each of which may find this owner unregistered

#: If so many queue lists in the owner record are no longer claimed from, they are removed from it.
#: Fewer stay, so that a channel that comes back to one need not register it again. More would cost:
#: each observer of this owner reads all of them.
MANY_UNUSED = 100

#: Former names that a process remembers. A worker without jobs gets a new name at each reconnect.
FORMER_NAMES_MAX = 100

#: Refused jobs (``InFlight.refused_count``) and jobs whose settlement is deferred, at most, with
#: which a process claims further jobs. They do not count against the prefetch, so that other jobs
#: run. Without a limit a worker would claim a whole queue of such jobs into memory.
REFUSED_MAX = 100

#: Seconds for which a blocking read waits for a job. After the death of its process, a job may land
#: for so long.
BLOCK_TIMEOUT = 20

T = TypeVar("T")

#: ``how`` of ``on_owner_lost`` -> the text for the log.
TEXT_BY_LOSS = {
    "reaped": "This worker was declared dead (owner=%s): no heartbeat reached Redis within its "
    "limits. Its jobs were recovered: those that are running here may run twice, the "
    "others do not start here. Check whether the process was frozen, hung, or cut off "
    "from Redis.",
    "unknown": "Redis no longer knows this worker (owner=%s): its keys were flushed, deleted or "
    "evicted, or Redis restarted empty or came back with older data. Jobs that Redis still "
    "has are requeued, running ones may run twice, missing ones are logged as lost. Look for "
    "FLUSHALL, DEL, eviction, disabled persistence and restored backups.",
}


CANNOT_LEAVE = (
    "This process stays registered although its last consumer is closed, since no thread could be "
    "started (owner=%s): %s. Jobs that it could not requeue stay in Redis, in its private list, "
    "until it opens another consumer or ends. Raise the limit of threads (ulimit -u, pids.max of "
    "the cgroup), and restart the process."
)


class Owner:
    """This process in one database, shared by all its channels there, with the options of the first
    channel. Thread-safe. Its heartbeat session calls it as its ``HeartbeatListener``.

    Arguments:
        failover_targets: servers that may take over from that of ``params``.
        executor: runs the jobs.
    """

    def __init__(
        self,
        params: Params,
        config: Config,
        failover_targets: Sequence[Params] = (),
        executor: Executor = NO_POOL,
    ) -> None:
        self.config = config
        self.executor = executor
        self.pid = own_pid()
        primary_guard, params = PrimaryGuard(), without_retries(params)
        if hasattr(params.get("connection_class"), "replaceable"):
            # The class was made by ``following`` (``store/redis/connections.py``). With a
            # ``primary_guard`` its connections refuse each server but the one that gets this
            # owner's heartbeats.
            params["primary_guard"] = primary_guard
        #: For all commands but those of the heartbeats and of the blocking reads.
        self.client = Redis(connection_pool=_pool_for(params))
        self.database = Database(self.client, config)
        self.database.is_registered = executor.is_registered
        #: Its jobs in flight, each with a lease.
        self.leases = InFlight(self.database, executor)
        self.suspects = SuspectClaims(self.leases)
        self.settlement = Settlement(self.leases, self.suspects)
        first_record = OwnerRecord.of_process("", ProcessImage.current(), config)
        self.heartbeat_session = HeartbeatSession(
            params,
            config,
            primary_guard,
            first_record,
            listener=self,
            failover_targets=failover_targets,
        )
        #: Set (by a signal handler, too) when the process is to stop: it claims and starts no more.
        self.stopping = False
        #: Set if the process stops by an error of its own: the jobs that it still runs at its end
        #: are to blame, as after any death.
        self.failing = False
        #: Deferred calls, which ``catch_up`` makes: those that take long, those that come up in a
        #: thread that must not wait (the heartbeat thread), and those that failed while the server
        #: was away.
        self.deferred_calls: deque[Callable[[], object]] = deque()
        #: Ids of its blocking connections, which the reaper closes when it reaps this owner.
        self.blocking: set[int] = set()
        #: Its blocking reads that wait at this moment.
        self.armed_reads: set[object] = set()
        #: Until when a blocking read of a closed channel may still bring a job (monotonic s).
        self._may_land_until = 0.0
        #: The rank of this owner among the owners of the same queue lists, and how many of them
        #: wait for jobs, as of the last heartbeat.
        self.rank = OwnerRank()
        #: The queues that are paused, as of the last heartbeat, and those that a claim found paused
        #: since: no channel claims from them, or waits for their jobs.
        self.paused: frozenset[str] = frozenset()
        #: As in ``OwnerRecord``; the maintenance thread sets it, and the next heartbeat sends it.
        self.started_jobs: tuple[tuple[int, int], ...] = ()
        self.memory = 0  # as ``started_jobs``
        #: Number of times that the connections were replaced after failed heartbeats.
        self.outages = 0
        self._lists_by_user: dict[int, Mapping[str, int]] = {}
        #: The queue lists from which some channel claims.
        self._consumed: frozenset[str] = frozenset()
        self._group = ""  # a digest of these
        #: The name under which a peer declared this process dead, until it has another one.
        self._lost_name = ""
        #: The latest of the names that this process has had and has no more.
        self._former_names: deque[str] = deque(maxlen=FORMER_NAMES_MAX)
        #: Held over whole conversations with the server; the heartbeat thread never takes it.
        self._lock = threading.RLock()
        self._heartbeat_thread: HeartbeatThread | None = None
        self._late_leave: LateLeave | None = None  # its thread, while it has to leave later

    # -- what the server knows of it

    @property
    def record(self) -> OwnerRecord:
        """The owner record as the server has it."""
        return self.heartbeat_session.record

    @property
    def name(self) -> str:
        """``host|pid|nonce``; empty while it is not registered."""
        return self.record.owner

    @property
    def params(self) -> Params:
        """The parameters of its server; after a failover those of another one."""
        return self.heartbeat_session.params

    @property
    def host_peers(self) -> tuple[str, ...]:
        """The other owners of this host, as of the last heartbeat."""
        return tuple(name for name in self.heartbeat_session.host_owners if name != self.name)

    @property
    def staleness(self) -> StalenessTracker:
        """The staleness of the other owners, as this process has watched it."""
        return self.heartbeat_session.staleness

    @property
    def private_lists(self) -> PrivateLists:
        """The private lists on the server, of this owner and of others."""
        return self.leases.pending.lists

    # -- from the first channel to the last

    def check_process(self) -> None:
        """Raise ForkedConnection in a child that inherited this; it would claim for its parent."""
        if self.pid != own_pid():
            raise ForkedConnection(
                f"this connection belongs to process {self.pid}, and this is its child, process "
                f"{own_pid()}: open a new connection in the child"
            )

    def join(self, user: int, lists: Mapping[str, int]) -> None:
        """Register this process and the queue lists (-> ms of x-expires) that a channel (``user``)
        claims from, and start the heartbeats.

        Raises UnsupportedBroker if the server cannot carry the guarantee.
        """
        with self._lock:
            first, registered = not self.name, self.record.lists
            self._lists_by_user[user] = lists
            self._note_consumed()
            new = {name: ms for name, ms in lists.items() if registered.get(name) != ms}
            if first:
                check_server(self.client, self.config.global_keyprefix)
                self.stopping = self.failing = False  # of its earlier registration, if it left
                if self._heartbeat_thread is not None and self._heartbeat_thread.stopped:
                    # An exception interrupted ``_end`` while its thread unregistered. Each call by
                    # that thread would fail, and this process could never register again.
                    self._heartbeat_thread = None
            if first or new:
                register = self.heartbeat_session.register
                self._by_heartbeat_thread(partial(register, new, unused=self._unused()))
            if first and self._former_names:
                self.deferred_calls.append(self._leave_former_names)
            if self._lost_name:
                _log_successor(self._lost_name, self.name)
                self._lost_name = ""
            # Also if all is registered: an earlier call may have registered it and then failed to
            # start a thread. Jobs would be claimed without heartbeats, and run twice.
            if self._heartbeat_thread is None:
                thread = HeartbeatThread(self.heartbeat_session)
                try:
                    thread.start()
                except BaseException:
                    # An exception may interrupt the call when the thread runs already. If that
                    # thread went on, the next call would start a second one with the same session.
                    thread.stopped = True
                    raise
                self._heartbeat_thread = thread

    def _note_consumed(self) -> None:
        self._consumed = names = frozenset(chain(*self._lists_by_user.values()))
        self._group = digest("\n".join(sorted(names)).encode())[:12] if names else ""

    def _unused(self) -> Collection[str]:
        """Return the queue lists from which no channel claims any more, if they are many and this
        owner surely has no job of them."""
        unused = self.record.lists.keys() - self._consumed
        if len(unused) < MANY_UNUSED or not self.leases.lost_claims.none_left:
            return ()
        return unused - InFlightJobs(self.database).counts([self.name])[self.name].lists.keys()

    def _by_heartbeat_thread(self, act: Callable[[], T]) -> T:
        thread = self._heartbeat_thread
        return thread.call(act) if thread is not None else act()

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

    def claim(self, lists: Sequence[str], *asked: Any, backlog: object = None) -> Fetched:
        """Claim, as ``InFlight.claim``. If the server does not know this owner, nothing is claimed:
        register and claim again, ``REGISTRATIONS_MAX`` times in all. If the server forgets the
        owner each time, return the last result, which has no jobs (``claims.registered`` is
        False)."""
        for _ in range(REGISTRATIONS_MAX):
            fetched = self.leases.claim(self.name, lists, *asked, backlog=backlog)
            if fetched.claims.registered:
                break
            self.heartbeat()
        return fetched

    def return_landed(self, owner: str, lists: Iterable[str]) -> None:
        """Requeue the jobs that have landed for ``owner``, a present or former name of this
        process. If the server cannot be reached now, a deferred call does it."""
        expires = {name: self.leases.pending.expires.get(name, 0) for name in lists}
        try:
            self.private_lists.return_landed(owner, expires)
        except BaseException as exc:
            # Also what a signal handler raises: without the call the job would stay in its landing
            # list, since no claim names it.
            self.deferred_calls.append(partial(self.private_lists.return_landed, owner, expires))
            if not isinstance(exc, RedisError):
                raise

    def reconcile(self) -> int:
        """Reconcile: requeue the jobs that the server has for this owner and that have no lease in
        this process; return how many. It is due after a reply was lost."""
        return self.leases.lost_claims.reconcile(self.name, self.record.lists)

    @property
    def busy(self) -> bool:
        """True if a job runs, or may run."""
        return self.executor.busy(self.leases.has_unsettled)

    @property
    def has_many_refused(self) -> bool:
        """Return whether so many jobs wait for their requeue after a refusal, or for a deferred
        settlement, that this process may claim none (``REFUSED_MAX``)."""
        count = self.leases.refused_count
        if self.deferred_calls:  # mostly there is none, and each tick asks
            count += self.leases.unsettled_run_count
        return count >= REFUSED_MAX

    @property
    def has_deferred_calls(self) -> bool:
        """True if ``catch_up`` has deferred calls or announcements to make, log lines to write, or
        lost jobs to examine."""
        pending = self.leases.pending
        to_announce = pending.log_lines or pending.announcements
        return bool(self.deferred_calls or to_announce or pending.lost_jobs)

    def catch_up(self) -> None:
        """Make the deferred calls and the announcements, and send what is pending; what fails now
        stays deferred.

        Raises:
            ResponseError: the server refused at least one of these, the first of them with this
                error. The others were made all the same.
            RedisError, OSError: the server cannot be reached; the rest was not tried.
        """
        self.leases.write_log()  # first: the calls below fail while the server is away
        # Before the send: one of the calls may replace the connections that would send the acks.
        calls = [self._make_deferred_call] * len(self.deferred_calls)
        examine = self.leases.pending.lost_jobs.examine
        refusal: ResponseError | None = None
        for act in (*calls, self.leases.flush, self.leases.announce, examine):
            try:
                act()
            except ResponseError as exc:
                # The server may refuse one job for good (another program wrote to the key of its
                # queue). If that ended the round, no other call and no ack would be sent any more.
                refusal = refusal or exc
        if refusal is not None:
            raise refusal

    def _make_deferred_calls(self) -> None:
        """Make each deferred call once. One that the server refuses is made again later."""
        for _ in range(len(self.deferred_calls)):
            with suppress(ResponseError):
                self._make_deferred_call()

    def _make_deferred_call(self) -> None:
        """Make the oldest deferred call; if it fails because of the server, it is the last one of
        the deferred calls from then on."""
        try:
            act = self.deferred_calls.popleft()
        except IndexError:  # another thread was faster
            return
        try:
            act()
        except BaseException as exc:
            # An error of another kind would only repeat. The end of a greenlet, or what a signal
            # handler raises, says nothing about the call: if it were dropped, a landed job would
            # stay in its landing list.
            if isinstance(exc, (RedisError, OSError)) or not isinstance(exc, Exception):
                self.deferred_calls.append(act)
            raise

    def leave(self, user: int, *, may_land: bool = False) -> None:
        """Settle what a channel (``user``) leaves; with the last channel, and if no lease is left,
        unregister. An error of the server is logged, not raised. If a plain consumer is still
        registered after its last channel, ``LateLeave`` tries again.

        Arguments:
            may_land: whether a blocking read may still bring a job. Then a *tombstone* (a mark of
                an owner that is gone) stays on the server when this process unregisters, by which
                reapers find the job and requeue it.
        """

        def settle() -> None:
            try:
                self._settle()
            finally:  # also after an error: this channel must not keep the owner registered
                with self._lock:
                    if may_land:
                        self._may_land_until = monotonic() + BLOCK_TIMEOUT
                    self._lists_by_user.pop(user, None)
                    self._note_consumed()
                    if not self._lists_by_user and self.name and self.leases.is_empty:
                        self._end()

        try:
            # Two tries: if this is the last channel, no later call would send what is pending.
            if exc := self._try(settle, 2):
                logger.warning(
                    "Acks and requeues were not sent when a channel closed (owner=%s): %s. The "
                    "jobs stay in Redis, in this worker's private list, until Redis answers. If "
                    "another worker recovers them first, they run again, also those that had "
                    "ended. Check Redis.",
                    self.name,
                    exc,
                )
            self.leases.write_log()  # the lines of what the channel requeued when it closed
            if not self.name:  # no longer registered: the maintenance thread passes over this owner
                self.leases.announce()
        finally:
            # Also if an exception (a signal handler that raises) interrupts the sends: the jobs
            # would be kept by heartbeats, and not be requeued, until the process ends.
            if not self.executor.endless:
                self.leave_later()

    def leave_later(self) -> None:
        """Start a thread that tries to leave each second, unless a channel joins before. Without it
        the jobs that the server refused to take back, or that landed late, would stay here, and be
        reported alive by heartbeats, until the process ends."""
        with self._lock:
            runs = self._late_leave is not None and self._late_leave.is_alive()
            if self.name and not self._lists_by_user and not runs:
                self._late_leave = LateLeave(self._try_to_leave)
                try:
                    self._late_leave.start()
                except RuntimeError as exc:  # if it were raised, the channel's close would fail
                    # While the interpreter exits, Python 3.12 and later start no thread.
                    # ``leave_for_good`` follows then. (``sys.is_finalizing`` is true only later.)
                    if "interpreter shutdown" not in str(exc):
                        logger.warning(CANNOT_LEAVE, self.name, exc)

    def _try_to_leave(self) -> bool:
        """Make the deferred calls, send what is pending, and unregister if no lease is left. Return
        True if that is done, or there is nothing to do: the owner has left, a channel has joined
        meanwhile, or ``leave_for_good`` has left the jobs to a peer."""
        with self._lock:
            owner, heartbeats = self.name, self._heartbeat_thread
            if self._lists_by_user or not owner or heartbeats is None or heartbeats.stopped:
                self._late_leave = None
                return True
        has_left = False
        try:
            self._make_deferred_calls()
            self._settle()
            self._make_deferred_calls()  # the first ones may have deferred others
            with self._lock:  # a channel that joins at this moment waits, and registers again
                if not self._lists_by_user and self.name and self.leases.is_empty:
                    self._end(logging.DEBUG)
                    has_left = not self.name
                    if has_left:
                        self._late_leave = None
                    else:  # a read or a late command has brought a job: it is requeued next time
                        self.leases.needs_reconcile = True
        except (RedisError, OSError) as exc:
            logger.debug("Owner could not leave yet (owner=%s): %s.", owner, exc)
        self.leases.announce()
        if has_left and not self.name:
            logger.info(
                "Jobs of a closed consumer were requeued after all, and it is unregistered "
                "(owner=%s).",
                owner,
            )
        return has_left

    def _settle(self) -> None:
        """Send what is pending, and reconcile if a reply was lost."""
        self.leases.flush()
        if self.leases.needs_reconcile:
            self.reconcile()
        self.leases.pending.lost_jobs.examine()

    def _try(self, act: Callable[[], object], tries: int) -> Exception | None:
        """Call ``act`` until it succeeds, ``tries`` times at most; return its last error. If the
        server has restarted, one try may meet a lost connection of the pool, and another the lost
        connection of the heartbeats."""
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
            if not self.name:  # ``LateLeave`` was faster
                return
            # First: the run of a job whose settlement is deferred has ended, perhaps by the job
            # itself. Below it would count as cut short by this stop, and get no strike.
            self._make_deferred_calls()
            self._settle()
            if not self.failing:
                self.leases.requeue_all()
            elif self.leases.requeue_idle():
                return
            self._make_deferred_calls()  # a former name of this process has no job now
            self.leases.pending.lost_jobs.examine()
            self._lists_by_user.clear()
            self._end()

        with self._lock:
            if exc := self._try(settle, 3):
                logger.warning(
                    "Worker could not unregister at its end (owner=%s): %s. Another worker "
                    "recovers its jobs. Check whether Redis answers.",
                    self.name,
                    exc,
                )
                if self._heartbeat_thread is not None:
                    # With further heartbeats no peer would declare this owner dead, and no reaper
                    # would recover its jobs.
                    self._heartbeat_thread.stopped = True
        self.leases.announce()

    def _end(self, level: int = logging.WARNING) -> None:
        """Unregister, unless the server has jobs of this owner; that is logged at ``level``. If a
        blocking read may still bring a job, leave a tombstone for so long: the reads of a channel
        that was never closed wait until the process is gone, and a job that lands for an owner
        without a tombstone is found by no reaper."""
        owner = self.name
        tombstone = max(0.0, self._may_land_until - monotonic())
        if self.armed_reads:
            tombstone = BLOCK_TIMEOUT
        left = self._by_heartbeat_thread(partial(self.heartbeat_session.leave, tombstone))
        if left > 0:
            logger.log(
                level,
                "Worker leaves with jobs in flight (owner=%s, jobs=%d) and stays registered: "
                "another worker recovers them when this process has ended.",
                owner,
                left,
            )
            return
        if left < 0:  # a peer has declared this owner dead
            self._give_up(owner, "reaped", "")
        self._former_names.append(owner)
        self._heartbeat_thread = None
        self.leases.release_connection()
        cast("SharedPool", self.client.connection_pool).leave(self)

    # -- HeartbeatListener: its docstring says who calls these methods, and what they must not do

    def describe(self, record: OwnerRecord) -> OwnerRecord:
        executor = self.executor
        return record.with_(
            node=executor.node,
            tasks=executor.tasks,
            connections=tuple(self.blocking),
            pool=tuple(executor.pids()),
            pool_name=executor.pool_name,
            slots=executor.slots,
            memory=self.memory,
            unconsumed=tuple(sorted(record.lists.keys() - self._consumed)),
            group=self._group,
            started_jobs=self.started_jobs,
        )

    def waits(self) -> bool:
        return bool(self.armed_reads)

    def loop_ticks(self) -> int:
        return self.executor.tick_count()

    def on_answer(self, record: OwnerRecord, answer: Heartbeat, asked: float) -> None:
        self.leases.pending.expires = record.lists
        self.leases.pending.lost_jobs.heartbeat_run_id = record.run_id
        self.suspects.lists = answer.probation
        self.rank = answer.rank
        self.paused = answer.paused
        self.leases.pending.parking.note_answer(answer.now, answer.due, asked)
        if record.state != HUNG:
            self.leases.permit.renew(record.owner, asked)

    def on_hung(self) -> None:
        self.leases.permit.end()

    def on_outage_over(self) -> None:
        self.deferred_calls.append(self._replace_connections)

    def on_possible_rollback(self) -> None:
        self.leases.needs_reconcile = True

    def on_server_restarted(self) -> None:
        self.leases.needs_reconcile = True
        self.leases.pending.lost_jobs.server_restarted_at = time()

    def on_owner_lost(self, owner: str, how: str, new: str) -> None:
        self.deferred_calls.append(partial(self._give_up, owner, how, new))
        self._former_names.append(owner)
        if how == "unknown":
            self.deferred_calls.append(self.leases.pending.lost_jobs.record_data_loss)
            self.deferred_calls.append(self._leave_former_names)

    def on_failover(self, params: Params) -> None:
        # Each user of the client has the new pool by this; commands that are under way fail on
        # their old connections.
        old, self.client.connection_pool = self.client.connection_pool, _pool_for(params)
        old.disconnect(inuse_connections=False)
        self.leases.needs_reconcile = True

    def _leave_former_names(self) -> None:
        """Leave each former name of this process that the server has: it came back with older data.
        Such a name has no heartbeats, but its process lives. Observers on this host would count it
        as alive for ever, and its jobs would never run. Those on other hosts would declare it dead,
        and each job that ran at the time of that data would get a strike.
        """
        registry = OwnerRegistry(self.database)
        states = registry.states([*self._former_names])
        names = [name for name, state in states.items() if state not in (None, "reaped")]
        # A call of its own for each name: one that the server refuses for good must not repeat the
        # calls for the others.
        self.deferred_calls.extend(
            partial(self._leave_former_name, record) for record in registry.records(names).values()
        )

    def _leave_former_name(self, record: OwnerRecord, held_before: int | None = None) -> None:
        """Requeue the jobs of a former name without a strike, and unregister it. A job that this
        process still has is acked under that name; until then a deferred call tries again. The name
        has no heartbeats meanwhile: observers on other hosts may declare it dead, and the job then
        runs a second time, with a strike.

        Arguments:
            record: the record of the former name, as the server has it.
            held_before: the number of these jobs at the last try.
        """
        held = sum(lease.job.owner == record.owner for lease in self.leases.leases)
        if not held or held != held_before:  # else that job still runs: no command is needed
            count = self.leases.lost_claims.requeue_unknown(record.owner, record.lists)
            if OwnerRegistry(self.database).leave(record, BLOCK_TIMEOUT) <= 0:
                logger.info(
                    "Redis came back with older data, in which this worker has an earlier id "
                    "(owner=%s). That id is unregistered; jobs requeued just now: %d.",
                    record.owner,
                    count,
                )
                return
        self.deferred_calls.append(partial(self._leave_former_name, record, held))

    def _replace_connections(self) -> None:
        """Close idle connections: after an outage they may be dead without any sign, since a
        firewall may drop packets without an answer."""
        self.leases.release_connection()
        self.client.connection_pool.disconnect(inuse_connections=False)
        self.outages += 1

    def _give_up(self, owner: str, how: str, new: str) -> None:
        """Log that the server lost a name of this process (``how``: ``reaped`` or ``unknown``).
        Announce for each running job of that name that its ownership was lost (log, counter,
        signal), and requeue the jobs that wait. ``new``: the name that this process has now, if
        any."""
        logger.warning(TEXT_BY_LOSS[how], owner)
        self.leases.lose_all(owner)
        if new:
            _log_successor(owner, new)
        else:
            # The last channel has closed. The next channel registers this process under a new name.
            self._lost_name = owner


def _log_successor(owner: str, new: str) -> None:
    logger.info("Worker registered again under a new id (owner_before=%s, owner=%s).", owner, new)


def _pool_for(params: Params) -> SharedPool:
    """Return the pool of this process at a server. The channels use the same pool, unless Sentinels
    or a cluster choose the primary: then the owner has a pool of its own, whose connections have a
    ``primary_guard`` and so refuse a primary without the owner's heartbeats."""
    if params.get("slot") is None and "connection_pool" not in params:
        params = {name: value for name, value in params.items() if name != "primary_guard"}
    return shared_pool(params)
