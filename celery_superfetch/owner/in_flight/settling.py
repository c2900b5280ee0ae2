"""What this process holds until it is settled: who has it, and what is sent in which order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from redis.exceptions import RedisError

from ...model.certificate import Certificate
from ...model.job import Claimed, Job
from ...store.database import Database, Structure
from ...store.private_lists import PrivateLists
from ...store.wire.scripts import Call
from .acks import Acks
from .held import Held
from .losses import announce
from .requeues import Returns


class Stage(Enum):
    """Who has a job that is claimed and not settled."""

    #: We have it, or a consumer that may begin with it at any moment.
    CLAIMED = "claimed"
    #: A consumer that hands it over before it begins: till then it may be taken back.
    WAITS = "waits"
    #: A consumer that makes one run of many, and does not say when it begins.
    GATHERED = "gathered"
    #: A pool: it runs, or is about to.
    STARTED = "started"


class Settling(Structure):
    """The jobs that one process holds, from their claim on.

    Thread-safe: acks come from the consumer's loop, from the threads of a pool, and after the
    channel is closed; none of them needs a channel here.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.lists = PrivateLists(database)
        #: ms of x-expires for each queue list that has it.
        self.expires: dict[str, int] = {}
        #: A reply was lost: the private lists may hold jobs that nobody here knows.
        self.doubt = False
        self._held: dict[Job, Stage] = {}
        #: The latest suspect that was claimed.
        self._alone: Job | None = None
        #: Jobs that their claim has recorded as running, and no pool has got yet.
        self._recorded: set[Job] = set()
        #: Jobs that run on although the channel that delivered them is closed: they count
        #: against the prefetch of the next, or it would reserve jobs behind them.
        self.outlived: set[Job] = set()
        self.certificate = Certificate(self.config.heartbeat_interval)
        self._held_aside = Held(self.lists)
        self._acks = Acks(self.lists, self._held_aside)
        self._returns = Returns(self.lists, self.expires)
        self._lock = threading.RLock()

    # -- what is held

    def __len__(self) -> int:
        return len(self._held)

    def holds(self, job: Job) -> bool:
        """True while ``job`` is claimed here and not settled."""
        return job in self._held

    @property
    def queue_lists(self) -> set[str]:
        """Where those that are held come from."""
        with self._lock:
            return {job.queue_list for job in self._held}

    @property
    def alone(self) -> Job | None:
        """The job on probation that has this process for itself."""
        return self._alone if self._alone in self._held else None

    def will_ask(self, job: Job, asks: bool = True) -> None:
        """Note that the job's consumer hands it over (``start``) before it begins with it.

        Arguments:
            asks: False: it gathers jobs, and hands over what it makes of them.
        """
        with self._lock:
            if self._held.get(job) is Stage.CLAIMED:
                self._held[job] = Stage.WAITS if asks else Stage.GATHERED

    def may_start(self, job: Job) -> bool:
        """Whether the job is ours and waits to be started; False for ever once it is not."""
        stage = self._held.get(job, Stage.STARTED)
        return stage is not Stage.STARTED and job not in self._returns

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
            if not until or self.doubt or not self.may_start(job):
                return 0.0
            if job not in self._recorded:
                if record:
                    self._acks.start(job, record)
                try:
                    if self._acks.unsent:
                        self.post()
                except (RedisError, OSError):  # its channel meets the same, and gives it back
                    self._acks.forget_start(job)
                    return 0.0
            self._recorded.discard(job)
            self._held[job] = Stage.STARTED
            return until

    def ended(self, job: Job) -> None:
        """Note that the pool is done with the job, or never had it."""
        with self._lock:
            if job in self._held:
                self._held[job] = Stage.CLAIMED

    def drop(self, job: Job) -> None:
        """Note that a job has left the private list, or was never started."""
        with self._lock:
            self._held.pop(job, None)
            self._recorded.discard(job)
            self._acks.forget_start(job)
            self.outlived.discard(job)
            self._returns.forget(job)
            self._held_aside.forget(job)

    def waits(self, job: Job) -> None:
        """Note that a job waits in memory for its time; the next round trip moves it aside."""
        with self._lock:
            if job in self._held:
                self._held_aside.add(job)
                self._recorded.discard(job)  # moving it takes its record away

    def bring_back(self, job: Job) -> None:
        """Have a job in its private list, where whatever is done to it looks for it.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        with self._lock:
            with contextlib.suppress(RedisError):  # what was refused has not come either
                # The record of its start may be on its way, and must not come in behind what
                # removes it.
                self._run()
            self.scripts.run_all(self._held_aside.unhold(job))
            self._held_aside.forget(job)

    # -- settlements

    def ack(self, claimed: Claimed) -> None:
        """Settle a job with whatever is sent next; one given back is not ours."""
        with self._lock:
            if claimed.job in self._held:
                self._returns.forget(claimed.job)
                self._acks.add(claimed)

    def requeue(self, jobs: Iterable[Job], where: str = "front") -> None:
        """Give jobs back on purpose, in the order given (newest first for the front).

        What runs stays. What cannot be given back now is, as soon as the server can be asked
        again.
        """
        with self._lock:
            acked = set(self._acks)
            for job in jobs:
                stage = self._held.get(job)
                if stage is Stage.STARTED:
                    self.outlived.add(job)
                elif stage is not None and job not in acked:
                    self._returns.add(job, where)
            try:
                self._send_returns()
            except RedisError as exc:
                self._returns.warn(exc)

    def take_back(self, jobs: Iterable[Job], all_of_them: bool = True) -> list[Job]:
        """Give back those whose consumers have not handed them over, and now cannot.

        Arguments:
            all_of_them: those, too, that wait for their time.

        Returns:
            the jobs; in the order given, which is that of ``requeue``.
        """
        with self._lock:
            back = [job for job in jobs if self._held.get(job) is Stage.WAITS]
            if not all_of_them:
                aside = self._held_aside
                back = [job for job in back if not (job in aside or aside.is_due(job))]
            self.requeue(back)
            return back

    def give_all_back(self) -> None:
        """Give back whatever is still held, newest claims first (the process ends)."""
        with self._lock:
            # Nothing is about to start any more: the pool has ended.
            for job in self._held:
                self.ended(job)
            self.requeue(reversed(list(self._held)))

    # -- round trips

    def flush(self) -> None:
        """Send what waits to be settled now, and see that it is.

        Raises:
            redis.exceptions.RedisError: it still waits, and is sent again.
        """
        with self._lock:
            self._send_returns()
            self._run()

    def post(self) -> None:
        """Send what waits to be settled; something that is sent later reads the answer.

        Once sent it arrives, whatever becomes of this process; and nobody waits for the server.

        Raises:
            redis.exceptions.RedisError: it still waits, and is sent again.
        """
        with self._lock:
            self._send_returns()
            self._run(wait=False)

    @property
    def oldest_ack(self) -> Job | None:
        """The first of the acks that wait to be sent."""
        return next((job for job, _ in self._acks.waiting), None)

    @property
    def settlements(self) -> Mapping[str, int]:
        """How much waits to be sent: acks and returns (for tests and ``status``)."""
        return {"acks": len(self._acks), "returns": len(self._returns)}

    @property
    def unsent(self) -> bool:
        """Whether something waits for the next round trip."""
        return bool(self._acks.unsent or self._returns or self._held_aside)

    @property
    def unread(self) -> bool:
        """Whether answers to what was sent wait to be read."""
        return self._acks.unread

    def _send_returns(self) -> None:
        """Send the requeues that wait.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked.
        """
        if not self._returns:
            return
        try:
            gone = self._returns.send()
        except BaseException:
            # They may have gone, and have been claimed anew by who took it for one of them.
            self.doubt = True
            raise
        for job in gone:
            self.drop(job)

    def _run(self, last: Call | None = None, *, wait: bool = True) -> Any:
        """Send what is to be moved aside or settled, and then ``last``, whose reply it returns.

        Raises:
            redis.exceptions.RedisError: no reply came, or the acks were refused.
        """
        if self._acks.overdue:
            # Their connection may be lost by now, which is no reason not to ask on another.
            with contextlib.suppress(RedisError):
                self._exchange([])
            self._acks.rest()
        moves = self._held_aside.hold()
        # A server that does not know the script of a move is told it with the answer. By then the
        # job may be back on its queue, and claimed again.
        return self._exchange(moves, last, wait=wait or bool(moves))

    def _exchange(self, moves: list[Call], last: Call | None = None, *, wait: bool = True) -> Any:
        try:
            answers = self._acks.send(moves, last, wait=wait)
        except BaseException:
            self.doubt = True
            raise
        for job in answers.settled:
            self.drop(job)
        for job in answers.lost:
            announce(job, self.lists)
        if answers.refused is not None:
            self.doubt = self.doubt or last is not None  # nobody reads what a claim brought
            raise answers.refused
        return answers.last

    def rest(self) -> None:
        """Leave an idle connection to whoever looks after those; another thread may be using it."""
        if self._lock.acquire(blocking=False):
            try:
                self._acks.rest()
            finally:
                self._lock.release()
