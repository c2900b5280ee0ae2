"""What becomes of a job between its claim and its run."""

from __future__ import annotations

from threading import RLock

from redis.exceptions import RedisError

from ...model.certificate import Certificate
from ...model.job import Job
from ...store.running import RunningJobs
from .jobs import Move, State
from .outbox import Outbox


class Starts:
    """Says which jobs of a process may start, and until when. Thread-safe.

    Arguments:
        lock: that of ``InFlight``.
    """

    def __init__(self, outbox: Outbox, heartbeat_interval: float, lock: RLock) -> None:
        self.outbox = outbox
        self.jobs = outbox.jobs
        self.running = RunningJobs(outbox.lists.database)
        self.certificate = Certificate(heartbeat_interval)
        self._lock = lock

    def wait(self, job: Job, asks: bool = True) -> None:
        """Note that the job's consumer hands it over (``start``) before it begins with it.

        Arguments:
            asks: False: it gathers jobs, and hands over what it makes of them.
        """
        with self._lock:
            self.jobs.move(job, Move.WAIT if asks else Move.GATHER)

    def set_aside(self, job: Job) -> None:
        """Note that a job waits in memory for its time; the next round trip moves it aside."""
        with self._lock:
            if job in self.jobs:
                self.outbox.aside.add(job)
                self.jobs.record(job, False)  # moving it takes its record away

    def delivered(self, job: Job) -> None:
        """Note that its consumer has the job: one that only waits now does not count as running.

        A suspect has done nobody harm yet; another may wait for its rate limit.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        if not self.jobs.is_recorded(job) and job != self.jobs.alone:
            return
        with self._lock:
            if self.may_start(job) and not self.outbox.aside.is_due(job):
                self.unrecord(job)

    def unrecord(self, job: Job) -> None:
        """Have a job that counts as running count as waiting.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        with self._lock:
            self.jobs.record(job, False)
            self.outbox.acks.forget_start(job)
            self.running.remove(job)

    def may_start(self, job: Job) -> bool:
        """Whether the job is ours and waits to be started; False for ever once it is not."""
        return self.jobs.state(job) in (State.CLAIMED, State.WAITING, State.GATHERED)

    def start(self, job: Job, record: str = "") -> float:
        """Hand a job over to those who run it: from here on it is not given back.

        Its record as running is on its way before they have it, and takes along the ack of the
        job that made room; nobody waits for the answer. (With ETA jobs to be moved aside, it is
        waited for.)

        Arguments:
            record: its digest; empty where it may be settled before it runs.

        Returns:
            until when it may begin (monotonic s); 0: not now.
        """
        with self._lock:
            until = self.certificate.until(job.owner)
            # While a reply is lost, the record may say that a suspect runs here, alone.
            if not until or self.outbox.doubt or not self.may_start(job):
                return 0.0
            if not self.jobs.is_recorded(job):
                acks = self.outbox.acks
                if record:
                    acks.start(job, record)
                try:
                    if acks.unsent:
                        self.outbox.send(wait=False)
                except (RedisError, OSError):  # its channel meets the same, and gives it back
                    acks.forget_start(job)
                    return 0.0
            self.jobs.record(job, False)
            self.jobs.move(job, Move.START)
            return until

    def end(self, job: Job) -> None:
        """Note that the pool is done with the job, or never had it."""
        with self._lock:
            self.jobs.move(job, Move.END)
