"""What this process holds until it is settled: who has it, and what is sent in which order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from .acks import Acks
from .config import Config
from .held import Held
from .job import Claimed, Job
from .keys import Keys
from .leases import Leases
from .losses import announce
from .private_list import PrivateLists
from .returns import Returns
from .scripts import Call, Scripts


class Settling:
    """The jobs that one process holds, from their claim on.

    Thread-safe: acks come from the consumer's loop, from the thread that fires timers during
    a warm shutdown, and after the channel is closed; none of them needs a channel here.
    """

    def __init__(self, client: Redis, keys: Keys, config: Config) -> None:
        self.lists = PrivateLists(client, keys, config)
        self.scripts = Scripts(client)
        self.config = config
        #: ms of x-expires for each queue list that has it.
        self.expires: dict[str, int] = {}
        #: A reply was lost: the private lists may hold jobs that nobody here knows.
        self.doubt = False
        #: Jobs claimed and not settled -> handed to a pool, which may start it at any moment.
        self._held: dict[Job, bool] = {}
        #: The latest suspect that was claimed.
        self._alone: Job | None = None
        #: Claims that a pool of this process has and may start: owner and claim id.
        self.in_pool: set[tuple[str, str]] = set()
        #: Jobs that run on although the channel that delivered them is closed: they count
        #: against the prefetch of the next, or it would reserve jobs behind them.
        self.outlived: set[Job] = set()
        self.leases = Leases(config.heartbeat_interval)
        self._acks = Acks(self.lists, self.scripts)
        self._held_aside = Held(self.lists)
        self._returns = Returns(self.lists, self.scripts, self.expires, self._held_aside)
        self._lock = threading.RLock()

    # -- what is held

    def __len__(self) -> int:
        return len(self._held)

    def holds(self, job: Job) -> bool:
        """True while ``job`` is claimed here and not settled."""
        return job in self._held

    @property
    def alone(self) -> Job | None:
        """The job on probation that has this process for itself."""
        return self._alone if self._alone in self._held else None

    def unstarted(self, job: Job) -> bool:
        """Whether ``job`` is held, and no pool has it."""
        return self._held.get(job) is False

    def hand_over(self, job: Job, record: str = "") -> float:
        """Note that a pool has the job: from here on it may start without our knowledge.

        Arguments:
            record: its digest; empty where it may be settled before it runs.

        Returns:
            until when it may start without asking (monotonic s); 0 when it has to ask.
        """
        with self._lock:
            if job not in self._held:
                return 0.0
            self._held[job] = True
            self.in_pool.add((job.owner, job.claim_id))
            until = self.leases.recorded(job) or self._record(job, record)
            if until:
                self.leases.give(job)
            return until

    def _record(self, job: Job, record: str) -> float:
        """Record a job as running that has a slot for itself, without waiting for the answer.

        The record is on its way before the pool has the job, and takes along the ack of the one
        that made room. (With ETA jobs to be moved aside, the answer is waited for.)

        Returns:
            until when it may start so (monotonic s); 0 when it has to ask.
        """
        until = self.leases.until(job.owner)
        if not until or self.doubt or self.alone is not None or not self.leases.has_slot():
            return 0.0
        if record:
            self._acks.start(job, record)
        try:
            self.post()
        except (RedisError, OSError):  # it is sent again, and the job asks
            return 0.0
        return until

    def ended(self, job: Job) -> None:
        """Note that the pool is done with the job, or never had it."""
        with self._lock:
            self.leases.take_back(job)
            if job in self._held:
                self._held[job] = False

    def drop(self, job: Job) -> None:
        """Note that a job has left the private list, or was never started."""
        with self._lock:
            self._held.pop(job, None)
            self.leases.forget(job)
            self._acks.forget_start(job)
            self.in_pool.discard((job.owner, job.claim_id))
            self.outlived.discard(job)
            self._returns.forget(job)
            self._held_aside.forget(job)

    def waits(self, job: Job) -> None:
        """Note that a job waits in memory for its time; the next round trip moves it aside."""
        with self._lock:
            if job in self._held:
                self._held_aside.add(job)

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
            self.scripts.run_all(self._held_aside.unhold([job]))
            self._held_aside.forget(job)

    # -- settlements

    def ack(self, claimed: Claimed) -> None:
        """Settle a job with whatever is sent next; one given back is not ours."""
        with self._lock:
            job = claimed.job
            if job in self._held:
                self._returns.forget(job)
                self.in_pool.discard((job.owner, job.claim_id))
                self._acks.add(claimed)

    def requeue(self, jobs: Iterable[Job], where: str = "front") -> None:
        """Give jobs back on purpose, in the order given (newest first for the front).

        What cannot be given back now is, as soon as the server can be asked again.
        """
        with self._lock:
            acked = set(self._acks)
            self._returns.add((j for j in jobs if j in self._held and j not in acked), where)
            try:
                self._send_returns()
            except RedisError as exc:
                self._returns.warn(exc)

    def give_all_back(self) -> None:
        """Give back whatever is still held, newest claims first (the process ends)."""
        with self._lock:
            # Nothing is about to start any more: the pool has ended.
            for job in self._held:
                self.ended(job)
            self.requeue(reversed(list(self._held)))

    @property
    def pool_may_ask(self) -> bool:
        """Whether a pool may still come to a job that was called off, and ask for it."""
        return self._returns.pool_may_ask

    def long_called_off(self) -> list[Job]:
        """Jobs that nobody can ask about any more, once; their marks may go."""
        with self._lock:
            return self._returns.long_called_off()

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

    def ask(self, question: Call) -> Any:
        """Send what waits to be settled and a question of the same owner's, in one round trip.

        Raises:
            redis.exceptions.RedisError: one of them was refused, or no answer came.
        """
        with self._lock:
            reply = self._run(question)
            if isinstance(reply, Exception):
                raise reply
            return reply

    @property
    def oldest_ack(self) -> Job | None:
        """The first of the acks that wait to be sent."""
        return next(self._acks.waiting(), None)

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
        for job in self.leases.given(self._returns):
            self._returns.forget(job)
            self.outlived.add(job)  # it may have started, and nobody can call it off
        in_pool = {job for job, handed_over in self._held.items() if handed_over}
        for job, started in self._returns.send(in_pool).items():
            if started:
                self.outlived.add(job)
            else:
                self.drop(job)

    def _run(self, last: Call | None = None, *, wait: bool = True) -> Any:
        """Send what is to be moved aside or settled, and then ``last``, whose reply it returns.

        Raises:
            redis.exceptions.RedisError: no reply came, or the acks were refused.
        """
        if self._acks.overdue:
            # Their connection may be lost by now, which is no reason not to ask on another.
            with contextlib.suppress(RedisError):
                self._exchange(self._held_aside.unhold(self._acks.waiting()))
            self._acks.rest()
        moves = [*self._held_aside.unhold(self._acks.waiting()), *self._held_aside.hold()]
        # A server that does not know the script of a move is told it with the answer. By then the
        # job may be back on its queue, and claimed again.
        return self._exchange(moves, last, wait=wait or bool(moves))

    def _exchange(self, moves: list[Call], last: Call | None = None, *, wait: bool = True) -> Any:
        try:
            answers = self._acks.send(moves, last, wait=wait)
        except BaseException:
            self.doubt = True
            self.leases.void()
            raise
        for job in answers.settled:
            self.drop(job)
        for job in answers.lost:
            announce(job, self.lists)
        if answers.refused is not None:
            self.leases.void()
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
