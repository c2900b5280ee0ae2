"""The jobs in flight of one process: how they come, which part of it has them, and how they leave.

The fetch loop claims; the gate starts; deliveries ack and requeue; a closing channel and the
worker's stop requeue. If the process dies, each job is in the owner's private list: the reaper
requeues those with a waiting note, and recovers the others as running.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from time import monotonic

from redis.exceptions import RedisError

from ...model.job import Claimed, Job
from ...model.permit import StartPermit, clock
from ...store.database import Database
from ...store.private_lists import Claims, earlier_of
from .jobs import HELD, RUNS, Event, State
from .lost_claims import LostClaims
from .outbox import Outbox
from .runner import CONSUMER, Runner


class InFlight(Outbox):
    """The jobs in flight of one process, for all its channels on one database. Thread-safe: acks
    come from the consumer's loop, from a pool's threads, and after the channel is closed. What asks
    the server raises ``RedisError`` where it cannot be asked."""

    def __init__(self, database: Database, runner: Runner = CONSUMER) -> None:
        super().__init__(database)
        self.runner = runner
        self.permit = StartPermit(self.config.heartbeat_interval)
        self.lost_claims = LostClaims(self)
        #: Queue lists with suspects on probation, as far as this process has heard.
        self.suspects: frozenset[str] = frozenset()

    def claim(
        self,
        owner: str,
        lists: Sequence[str],
        most: int,
        turn: int,
        landed: Collection[str] = (),
        starts: int = 0,
    ) -> Claims:
        """Send what waits to be settled and claim, in one round trip; as ``PrivateLists.claim``."""
        with self.lock:
            # None starts beside a suspect, which a lost reply may have brought, too.
            starts = 0 if self.doubt or self.jobs.alone else starts
            call = self.lists.claim(owner, lists, most, turn, landed, starts)
            claims = self.lists.claims(call, lists, self.flush(call))
            for claimed in claims.jobs:
                self.jobs.add(claimed.job)
            self.jobs.recorded.update(job for job, _ in claims.jobs[: claims.started])
            return claims

    def claim_alone(
        self, owner: str, queue_list: str, solo_window: Callable[[int], float]
    ) -> Claimed | None:
        """Claim the next suspect of a queue list, if there is one and nothing runs here, nor may:
        a lost reply may have brought another. No job starts alongside it for ``solo_window`` of its
        level (s)."""
        with self.lock:
            self.flush()
            # A job that is with such a consumer may have begun.
            if any(state is State.DELIVERED or state in RUNS for state in self.jobs.values()):
                return None
            claimed = self._claim_suspect(owner, queue_list)
            if claimed is not None:
                self.jobs.alone = claimed.job
                self.jobs.alone_until = monotonic() + solo_window(claimed.probation)
            return claimed

    def claim_alongside(
        self, owner: str, queue_list: str, solo_window: Callable[[int], float]
    ) -> Claimed | None:
        """Claim the next suspect of a queue list to run alongside other jobs, if a quiesce for it
        was in vain. No other suspect starts for ``solo_window`` of its level (s): if two started
        together, one would be blamed for the other's deaths again and again."""
        with self.lock:
            self.flush()
            if self.jobs.suspects and monotonic() < self.jobs.alone_until:
                return None
            claimed = self._claim_suspect(owner, queue_list, alongside=True)
            if claimed is not None:
                self.jobs.alone_until = monotonic() + solo_window(claimed.probation)
            return claimed

    def end_solo(self) -> Job | None:
        """End the solo run of a suspect whose window is over: other jobs may start; return it."""
        with self.lock:
            alone = self.jobs.alone
            if alone is None or monotonic() < self.jobs.alone_until:
                return None
            self.jobs.alone = None
            return alone

    @property
    def solo_job(self) -> Job | None:
        """The job on probation that has this process for itself."""
        return self.jobs.alone

    def heard_of_suspects(self, lists: Collection[str]) -> None:
        """Add queue lists that have jobs on probation."""
        self.suspects |= {*lists}

    def found_no_suspects(self, lists: Collection[str]) -> None:
        """Remove queue lists that have no jobs on probation."""
        self.suspects -= {*lists}

    def _claim_suspect(
        self, owner: str, queue_list: str, alongside: bool = False
    ) -> Claimed | None:
        if self.doubt:
            return None
        call = self.lists.claim_suspect(owner, queue_list, alongside)
        [reply] = self.ask([call])
        if reply[0] == b"none":
            self.suspects -= {queue_list}
        if reply[0] != b"ok":
            return None
        job = Job(owner, queue_list, reply[1], call.args[-1])
        self.jobs.add(job)
        self.jobs.recorded.add(job)
        self.jobs.suspects.add(job)
        return Claimed(job, earlier_of(reply[2]))

    def reserve(self, job: Job) -> None:
        """Note that a request waits to start a job: until it starts, the job may be requeued."""
        with self.lock:
            self.jobs.apply(job, Event.RESERVE)

    def deliver(self, job: Job) -> None:
        """Note that a job is with a consumer that does not report when it begins."""
        with self.lock:
            self.jobs.apply(job, Event.DELIVER)

    def delivered(self, job: Job) -> None:
        """Note that the consumer of a job was called. If the job only waits now, clear the start
        record that it got with its claim."""
        if self.jobs.get(job) is State.FETCHED:
            self.deliver(job)
        if job in self.jobs.recorded:
            with self.lock:
                if self.may_start(job):
                    self.unrecord(job)

    def unrecord(self, job: Job) -> None:
        with self.lock:
            self.jobs.recorded.discard(job)
            self._drop_start(job)
            self._exchange([])  # a record on its way would come behind this
            self.lists.unrecord(job.owner, [job.claim_id])

    def holds(self, job: Job) -> bool:
        """Return whether this process has a lease of the job."""
        return job in self.jobs

    def is_running(self, job: Job) -> bool:
        """Return whether the pool has the job, also after its channel was closed."""
        return self.jobs.runs(job)

    @property
    def detached_count(self) -> int:
        """The number of jobs that still run although their channel is closed."""
        return self.jobs.counts[State.DETACHED]

    def deadline(self, job: Job) -> float:
        """Return until when a job may begin (``clock``); 0.0 if it may not begin now."""
        return self.permit.deadline(job.owner)

    def is_former(self, job: Job) -> bool:
        """Return whether a job was claimed under a former name of this process."""
        return self.permit.holder not in (None, job.owner)

    @property
    def is_reconcile_due(self) -> bool:
        """Whether a reply was lost since the last reconcile, or its second check is due."""
        return self.lost_claims.due

    def release_due(self) -> None:
        """Move parked jobs that are due to their queues, also those that other workers parked."""
        asked = clock()
        if self.parking.is_due:
            released = self.parked.release(self.expires)
            self.parking.heard(released.now, released.next, asked)

    def recall(self, task_ids: Collection[str]) -> int:
        """Make parked jobs due at once; return how many."""
        if count := self.parked.call(task_ids):
            self.parking.parked(0)
        return count

    def may_start(self, job: Job) -> bool:
        """Return whether a job waits to be started; False for ever once it does not."""
        return self.jobs.get(job) in HELD

    def start(self, job: Job, *, record: bool = True) -> float:
        """Hand a job over to those who run it: until when it may begin (``clock``); 0: not now.
        Its ``record`` as running (there is none where it may be settled before it runs) is sent
        before, and waited for only if jobs are to be parked."""
        with self.lock:
            deadline = self.permit.deadline(job.owner)
            # While a reply is lost, the record may say that a suspect runs here.
            if not deadline or self.doubt or not self.may_start(job):
                return 0.0
            if job not in self.jobs.recorded:
                if record:
                    self.record(job)
                try:
                    if self.unsent:
                        self.post()
                except (RedisError, OSError):  # its channel meets the same, and gives it back
                    self._drop_start(job)
                    return 0.0
            self.jobs.recorded.discard(job)
            # A signal handler may have requeued the job during the send: it would run twice.
            return deadline if self.jobs.apply(job, Event.START) else 0.0

    def take_back(self, job: Job) -> None:
        """Note that the pool did not begin with a job: it waits to be started again."""
        with self.lock:
            if self.jobs.apply(job, Event.TAKE_BACK) is State.RETURNING:
                self._returns[job] = "front", 0.0

    def cut_short(self, job: Job) -> None:
        """End the run of a job because this process is stopping: its requeue counts as a stop. It
        is requeued when its channel closes, in the order of the claims."""
        with self.lock:
            if self.jobs.runs(job):
                self.jobs.has_run.add(job)
                self.jobs.cut_short.add(job)
            self.take_back(job)

    def put_on_probation(self, job: Job) -> None:
        """Requeue a job to wait for a solo run. If this process dies in between, the job is marked,
        and whatever returns it puts it there."""
        with self.lock:
            self.lists.mark_suspect(job)
            self.requeue([job])
            self.suspects |= {job.queue_list}

    def confirm_starts(self) -> None:
        """Have the records of starts arrive: not behind what removes them."""
        with self.lock, suppress(RedisError):  # what was refused has not come either
            self._exchange([])

    def requeue_waiting(self, jobs: Iterable[Job]) -> list[Job]:
        """Requeue, in this order, those that wait to be started, which now cannot; return these. A
        run that was cut short may not have ended yet: its job is requeued at the close."""
        with self.lock:
            waiting = (job for job in jobs if self.jobs.get(job) is State.RESERVED)
            back = [job for job in waiting if job not in self.jobs.cut_short]
            self.requeue(back)
            return back

    def requeue_all(self) -> None:
        """Requeue all jobs, the newest claims first: the pool has ended."""
        with self.lock:
            self.jobs.cut_short.update(filter(self.jobs.runs, self.jobs))
            self.requeue(reversed(list(self.jobs)))

    def requeue_idle(self) -> int:
        """Requeue all jobs that do not run, the newest claims first; return how many do."""
        with self.lock:
            self.close(reversed(list(self.jobs)))
            return sum(map(self.jobs.runs, self.jobs))

    def lose(self, job: Job) -> None:
        self.drop(job)
        self.announce(job)

    def lose_all(self, owner: str) -> None:
        """An owner of ours is none any more: announce what runs, give back the rest, if it is still
        there. Acks still go to its old private lists: one before the reaper saves a second run, a
        later one removes nothing."""
        with self.lock:
            ours = [job for job in self.jobs if job.owner == owner]
            for job in ours:
                self._drop_start(job)
            self.requeue(job for job in reversed(ours) if self.jobs.get(job) is State.RESERVED)
            lost = [job for job in ours if self.jobs.runs(job)]
            self._no_news.update(lost)
        for job in lost:
            self.announce(job)
