"""The jobs in flight of one process, as tests drive and observe them.

Only this file, ``interventions.py``, ``fault_mutants.py`` and the direct unit tests that
``tests/unit/project/test_driver.py`` lists know ``celery_superfetch.owner.in_flight`` and what an
``Owner`` takes from it. A change to those changes these files, and no other test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_superfetch.model.dead_job import DeadJob
from celery_superfetch.model.job import Claimed, Counters, Job
from celery_superfetch.model.start_permit import clock
from celery_superfetch.model.strikes import Limits
from celery_superfetch.owner.in_flight import executor, lost_claims, pending
from celery_superfetch.owner.in_flight.in_flight import InFlight
from celery_superfetch.owner.in_flight.lease import HELD, TRANSITIONS, Event, Lease, State
from celery_superfetch.owner.in_flight.lost_jobs import LOGGED_IN_A_ROW
from celery_superfetch.owner.in_flight.parking import WORTH_PARKING
from celery_superfetch.owner.in_flight.settlement import Settlement
from celery_superfetch.owner.in_flight.suspect_claims import SuspectClaims
from celery_superfetch.owner.owner import Owner
from celery_superfetch.store.database import Database
from celery_superfetch.store.private_lists import NO_PAYLOADS, Claims, PrivateLists
from support.sends import replies_lost

if TYPE_CHECKING:
    import pytest  # a worker that imports this file has none

ACKS_PER_SCRIPT = pending.ACKS_PER_COMMAND
UNREAD_REPLIES_MAX = pending.UNREAD_REPLIES_MAX
LOST_JOBS_LOGGED_MAX = LOGGED_IN_A_ROW
PARK_MIN_S = WORTH_PARKING
SECOND_CHECK_S = lost_claims.LATE_CLAIM
REFUSED_INTERVAL = pending.REFUSED_INTERVAL
Executor = executor.Executor

#: Method of `Driver` -> the event that it stands for.
EVENTS = {
    "deliver": Event.DELIVER,
    "reserve": Event.RESERVE,
    "start": Event.START,
    "withdraw_start": Event.WITHDRAW,
    "requeue": Event.REQUEUE,
    "close": Event.CLOSE,
    "finish": Event.ACK,
    "postpone": Event.PARK,
}


class Driver:
    """The jobs in flight of one process. Jobs that it contains are in flight, the oldest claim
    first."""

    def __init__(self, in_flight: InFlight, suspects: SuspectClaims) -> None:
        self._in_flight, self._suspects = in_flight, suspects
        self._settlement = Settlement(in_flight, suspects)

    @classmethod
    def over(cls, database: Database, jobs_executor: Executor = executor.NO_POOL) -> Driver:
        """Return the jobs in flight of a process without an owner of its own."""
        in_flight = InFlight(database, jobs_executor)
        return cls(in_flight, SuspectClaims(in_flight))

    @classmethod
    def of(cls, owner: Owner) -> Driver:
        """Return the jobs in flight of an owner."""
        return cls(owner.leases, owner.suspects)

    # -- what is in flight

    def __contains__(self, job: object) -> bool:
        return isinstance(job, Job) and self._in_flight.leases.of(job) is not None

    def __iter__(self) -> Iterator[Job]:
        return iter([lease.job for lease in self._in_flight.leases])

    def __len__(self) -> int:
        return len(self._in_flight.leases)

    def _lease(self, job: Job) -> Lease:
        """Return the lease of a job; one that has left, for a job that is not in flight."""
        return self._in_flight.leases.of(job) or Lease(job, state=State.GONE)

    def _leases(self, jobs: Iterable[Job]) -> list[Lease]:
        return [self._lease(job) for job in jobs]

    @property
    def lists(self) -> PrivateLists:
        """The private lists: they number the claims of this process."""
        return self._in_flight.pending.lists

    def state(self, job: Job) -> str | None:
        """Return the name of a job's state; None for one that is not in flight."""
        lease = self._in_flight.leases.of(job)
        return None if lease is None else lease.state.name

    def events(self, job: Job) -> list[str]:
        """Return the events that change a job's state now: each is a method of this class."""
        state = self._lease(job).state
        return [name for name, event in EVENTS.items() if state in TRANSITIONS[event]]

    def state_after(self, state: str, event: str) -> str:
        """Return the name of the state to which an event leads from another."""
        return TRANSITIONS[EVENTS[event]][State[state]].name

    def has_waiting_note(self, job: Job) -> bool | None:
        """Return whether the server has a waiting note of a job, as far as this process knows."""
        return self._lease(job).has_waiting_note

    def commands(
        self,
        jobs: Iterable[Job],
        states: Iterable[str],
        has_waiting_note: bool | None,
        counters: Counters | None = None,
    ) -> list[str]:
        """Return the names of the calls that a send would make for jobs in some states, in their
        order. Nothing is sent."""
        leases = [
            Lease(job, counters, state=State[state], has_waiting_note=has_waiting_note, due_ms=1)
            for job, state in zip(jobs, states, strict=True)
        ]
        moves, others = self._in_flight.pending._commands_for(leases)
        return [command.call.name for command in [*moves, *others]]

    def is_running(self, job: Job) -> bool:
        """Return whether the pool has a job, also one whose channel is closed."""
        return self._lease(job).runs

    def is_reserved(self, job: Job) -> bool:
        """Return whether the consumer of a job will report its start, and has not."""
        return self._lease(job).state is State.RESERVED

    def may_start(self, job: Job) -> bool:
        """Return whether a job waits to be started; False for ever once it does not."""
        return self._lease(job).state in HELD

    def is_former(self, job: Job) -> bool:
        """Return whether a job was claimed under a former name of this process."""
        return self._in_flight.is_former(self._lease(job))

    @property
    def settled_count(self) -> int:
        """How many acks are to be sent, or have no reply yet."""
        return self._in_flight.leases.counts[State.SETTLED]

    @property
    def returning_count(self) -> int:
        """How many requeues are to be sent, or have no reply yet."""
        return self._in_flight.leases.counts[State.RETURNING]

    @property
    def refused_count(self) -> int:
        """How many of these the server refused to move elsewhere: many of them stop the claims."""
        return self._in_flight.refused_count

    @property
    def detached_count(self) -> int:
        """How many jobs still run although their channel is closed."""
        return self._in_flight.detached_count

    @property
    def has_delivered(self) -> bool:
        """Whether a consumer has jobs whose start it does not report."""
        return self._in_flight.leases.counts[State.DELIVERED] > 0

    @property
    def solo(self) -> Job | None:
        """The job on probation that has this process for itself."""
        solo = self._suspects.solo
        return None if solo is None else solo.job

    @property
    def expires_ms_by_list(self) -> Mapping[str, int]:
        """Queue lists that this process has claimed from, and when they expire."""
        return self._in_flight.pending.expires

    @expires_ms_by_list.setter
    def expires_ms_by_list(self, expires_ms_by_list: Mapping[str, int]) -> None:
        self._in_flight.pending.expires = expires_ms_by_list

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock that each change of what is in flight takes."""
        return self._in_flight.lock

    @property
    def suspect_lists(self) -> frozenset[str]:
        """Queue lists with jobs on probation, as far as this process knows."""
        return self._suspects.lists

    def hear_of_suspects(self, lists: Iterable[str]) -> None:
        """Note that some queue lists have jobs on probation, as a heartbeat's reply does."""
        self._suspects.add_lists([*lists])

    # -- the life of a job

    def claim(
        self,
        owner: str,
        lists: Sequence[str],
        most: int,
        turn: int = 1,
        landed: Collection[str] = (),
        starts: int = 0,
        brought: Mapping[str, bytes] = NO_PAYLOADS,
    ) -> Claims:
        """Send what is pending and claim, in one round trip; as ``PrivateLists.claim_call``."""
        return self._in_flight.claim(owner, lists, most, turn, landed, starts, brought).claims

    def claim_suspect(
        self, owner: str, queue_list: str, solo_window_s: float = 0.0
    ) -> Claimed | None:
        """Claim a job on probation for a solo run."""
        lease = self._suspects.claim_alone(owner, queue_list, lambda _: solo_window_s)
        return None if lease is None else lease.claimed

    def claim_suspect_alongside(
        self, owner: str, queue_list: str, solo_window_s: float = 0.0
    ) -> Claimed | None:
        """Claim a job on probation that need not run alone any more."""
        lease = self._suspects.claim_alongside(owner, queue_list, lambda _: solo_window_s)
        return None if lease is None else lease.claimed

    def hold(self, job: Job) -> None:
        """Add a job that the server has in the private list, as a claim would."""
        self._in_flight.leases.add(Lease(job))

    def move_to_backlog(self, job: Job, backlog: object) -> None:
        """Let a job be one that was claimed for another channel."""
        self._lease(job).backlog = backlog

    def deliver(self, job: Job) -> None:
        """Give a job to its consumer; until it starts, it does not count as running. Without
        ``reserve`` before this, its consumer does not report its start."""
        self._in_flight.delivered(self._lease(job))

    def unrecord(self, job: Job) -> None:
        """Clear the start record that a job got with its claim, at once."""
        self._in_flight.delivered(self._lease(job))
        self._in_flight.flush()

    def reserve(self, job: Job) -> None:
        """Note that a request waits to start a job."""
        self._in_flight.reserve(self._lease(job))

    def start(self, job: Job, *, record: bool = True) -> float:
        """Start a job; return until when it may begin (``clock``), or 0.0 if it may not start. One
        that its consumer does not have yet is reserved first."""
        if self.state(job) == State.FETCHED.name:
            self.reserve(job)
        return self._in_flight.start(self._lease(job), record=record)

    def withdraw_start(self, job: Job) -> None:
        """Note that the pool did not begin with a job: it waits again."""
        self._in_flight.withdraw_start(self._lease(job))

    def stop_run(self, job: Job) -> None:
        """End the run of a job because its process is stopping: its requeue counts as a stop."""
        self._in_flight.cut_short(self._lease(job))

    def finish(self, claimed: Claimed) -> None:
        """Ack a job; the next send carries the ack."""
        lease = self._lease(claimed.job)
        lease.counters = claimed.counters  # a test may say that it has some
        self._in_flight.ack(lease)

    def requeue(self, jobs: Iterable[Job], where: str = "front") -> None:
        """Requeue jobs in this order; a run of one has ended."""
        self._in_flight.requeue(self._leases(jobs), where)

    def requeue_later(self, job: Job) -> None:
        """Requeue a job after a pause, since the server has just refused to move it."""
        self._in_flight.requeue_later(self._lease(job))

    def close(self, jobs: Iterable[Job], where: str = "front") -> None:
        """Close the channel of jobs: those that run continue, the others are requeued."""
        self._in_flight.close(self._leases(jobs), where)

    def requeue_strays(self, known: Iterable[Job]) -> int:
        """Requeue the jobs that were claimed and not delivered, except the ``known`` ones; return
        how many."""
        return self._in_flight.requeue_strays(None, self._leases(known))

    def requeue_reserved(self, jobs: Iterable[Job]) -> list[Job]:
        """Requeue those of some jobs whose consumers report starts and have not; return them."""
        return [lease.job for lease in self._in_flight.requeue_waiting(self._leases(jobs))]

    def park(self, job: Job, due_ms: float) -> bool:
        """Park a job that is due at a time of the server's clock; return False if it stays."""
        return self._in_flight.park(self._lease(job), due_ms)

    def postpone(self, job: Job, seconds: float) -> None:
        """Park a job that cannot run now, or not again yet, for so many seconds."""
        self._in_flight.postpone(self._lease(job), seconds)

    def put_on_probation(self, job: Job) -> None:
        """Requeue a job to wait for a solo run."""
        self._suspects.put_on_probation(self._lease(job))

    def end_solo(self) -> None:
        """Let other jobs start alongside the one that runs alone."""
        self._in_flight.leases.solo = None

    def run_solo(self, job: Job, seconds: float) -> None:
        """Let a job run alone for some seconds, as if it had been on probation."""
        self._in_flight.leases.solo = self._lease(job)
        self._suspects.solo_until = monotonic() + seconds

    def end_solo_if_over(self) -> Job | None:
        """Let other jobs start if the solo window is over; return the job that ran alone."""
        return self._suspects.end_solo()

    # -- what is sent

    def flush(self) -> None:
        """Send what is pending and read all replies."""
        self._in_flight.flush()

    def post(self) -> None:
        """Send what is pending; the replies are read later."""
        self._in_flight.post()

    @property
    def has_unsent(self) -> bool:
        """Whether something is pending."""
        return self._in_flight.unsent

    @property
    def has_unread(self) -> bool:
        """Whether replies are to be read."""
        return self._in_flight.unread

    def rest(self) -> None:
        """Give the connection back to its pool if it was not used for a moment."""
        self._in_flight.release_idle_connection()

    def release_connection(self) -> None:
        """Give the connection back to its pool, unless it is in use."""
        self._in_flight.release_connection()

    @property
    def is_sending(self) -> bool:
        """Whether a send waits for its replies."""
        return self._in_flight.pending._is_sending

    @property
    def has_late_replies(self) -> bool:
        """Whether the replies to be read came so long ago that the connection may be lost."""
        return self._in_flight.pending._pipeline.has_late_replies

    def retry_requeue_now(self, job: Job) -> None:
        """Let the next send repeat a requeue that the server refused a moment ago."""
        self._lease(job).returns_after = 0.0

    def retry_requeues_now(self) -> None:
        """Let the next send repeat each requeue that the server refused a moment ago."""
        self._in_flight.end_pauses()

    def act_while_asked(self, job: Job, act: Callable[[], object]) -> None:
        """Call a function when ``has_unsent`` comes to a requeue that the server refused."""

        class Moment(float):
            def __le__(self, now: float) -> bool:
                act()
                return float(self) <= now

        lease = self._lease(job)
        lease.returns_after = Moment(lease.returns_after)

    def log_at_once(self) -> None:
        """Write each log line where its cause is found, also under the lock."""
        self._in_flight.pending.log_lines.add = lambda write: write()  # type: ignore[method-assign]

    def write_log(self) -> None:
        """Write the log lines, as a maintenance thread does each second."""
        self._in_flight.write_log()

    def act_as_announcing_ends(self, act: Callable[[], object]) -> None:
        """Call a function once, when a thread has announced all that it found and is about to let
        other threads announce."""
        announcements = self._in_flight.pending.announcements
        lock = announcements._making

        class Lock:
            acquire = staticmethod(lock.acquire)

            def release(self) -> None:
                announcements._making = lock
                act()
                lock.release()

        announcements._making = Lock()  # type: ignore[assignment]

    # -- what a lost reply, a death or the end of the process does

    def lose_reply(self) -> AbstractContextManager[None]:
        """Let the server carry out what this process sends meanwhile, and lose the replies."""
        return replies_lost()

    @property
    def needs_reconcile(self) -> bool:
        """Whether a reply was lost: the private list may hold jobs that are not in flight here."""
        return self._in_flight.needs_reconcile

    @needs_reconcile.setter
    def needs_reconcile(self, needed: bool) -> None:
        self._in_flight.needs_reconcile = needed

    @property
    def is_reconcile_due(self) -> bool:
        """Whether a reconcile is needed, or its second check is due."""
        return self._in_flight.lost_claims.due

    def reconcile(self, owner: str, lists: Mapping[str, int]) -> int:
        """Requeue what landed and claims that are not in flight here; return how many jobs."""
        return self._in_flight.lost_claims.reconcile(owner, lists)

    @property
    def awaits_second_check(self) -> bool:
        """Whether a reconcile is to be followed by a second check."""
        return self._in_flight.lost_claims._second_check_at != math.inf

    def make_second_check_due(self) -> None:
        """Let the next reconcile be the second check."""
        self._in_flight.lost_claims._second_check_at = 0.0

    @staticmethod
    def second_check_after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        """Change the time from a reconcile to its second check."""
        monkeypatch.setattr(lost_claims, "LATE_CLAIM", seconds)

    def expect_late(self) -> None:
        """Note that a read was closed which may still bring a job."""
        self._in_flight.expect_late()

    def forget_acks(self) -> None:
        """Forget which claims were acked a moment ago."""
        self._in_flight.pending.recently_acked.clear()

    def heartbeat_confirmed(self, owner: str, ago_s: float = 0.0) -> None:
        """Give an owner the start permit that a heartbeat some seconds ago would have given it."""
        self._in_flight.permit.renew(owner, monotonic() - ago_s)

    def learn(self, owner: str) -> None:
        """Learn that an owner was declared dead: announce the running jobs, requeue the others."""
        self._in_flight.lose_all(owner)
        self._in_flight.announce()

    def leave(self) -> None:
        """Requeue all jobs in flight, as at the end of the process."""
        self._in_flight.requeue_all()

    def examine_missing(self) -> None:
        """Find out what became of jobs whose requeue found no claim."""
        self._in_flight.pending.lost_jobs.examine()

    @property
    def has_missing(self) -> bool:
        """Whether such jobs are to be examined."""
        return bool(self._in_flight.pending.lost_jobs)

    def server_restarted(self, at: float) -> None:
        """Note that the server had restarted at a time (s since the epoch)."""
        self._in_flight.pending.lost_jobs.server_restarted_at = at

    def heartbeat_came_from(self, run_id: str) -> None:
        """Note the run of the server that answered the last heartbeat."""
        self._in_flight.pending.lost_jobs.heartbeat_run_id = run_id

    # -- parked jobs

    def server_time_is(self, now_ms: float, due_ms: float | None = None) -> None:
        """Note what the server's clock shows, and when the next parked job is due."""
        self._in_flight.pending.parking.note_answer(int(now_ms), due_ms, clock())

    def recall(self, task_ids: Collection[str]) -> int:
        """Make parked jobs due now; return how many there were."""
        return self._in_flight.recall(task_ids)

    def release_due(self) -> None:
        """Move parked jobs that are due to their queues."""
        self._in_flight.release_due()

    # -- jobs that end neither by an ack nor by a requeue

    def recover_or_kill(
        self, job: Job, reason: str, sender: Any, limits: Limits, **how: bool
    ) -> DeadJob | None:
        """Recover or dead-letter a job whose run was lost; return the dead job. If its claim is
        gone, announce that."""
        dead = self._settlement.recover_or_kill(self._lease(job), reason, sender, limits, **how)
        self._in_flight.announce()
        return dead

    def kill_if_over_limit(self, job: Job, sender: Any, limits: Limits) -> DeadJob | None:
        """Dead-letter a claimed job that is over a limit; return the dead job."""
        return self._settlement.kill_if_over_limit(self._lease(job), sender, limits)

    def kill(self, job: Job, reason: str, sender: Any) -> DeadJob | None:
        """Dead-letter a job that Celery cannot receive or run; return the dead job."""
        return self._settlement.kill(self._lease(job), reason, sender)

    def kill_without_notice(self, job: Job, reason: str) -> DeadJob | None:
        """Dead-letter a job whose caller the caller of this informs; return the dead job."""
        return self._settlement.kill_without_notice(self._lease(job), reason)

    def kill_unparseable(self, job: Job) -> DeadJob | None:
        """Dead-letter a payload that is no message; return the dead job."""
        return self._settlement.kill_unparseable(self._lease(job))
