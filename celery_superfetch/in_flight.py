"""What this process holds: claims, settlements, and the doubts a lost reply leaves."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from .acks import Acks, trace
from .config import Config
from .held import Held
from .job import Claimed, Earlier, Job, digest, parse
from .keys import Keys
from .private_list import Claims, PrivateLists, earlier_of
from .returns import STARTED, Returns
from .scripts import Call, Scripts
from .signals import LostJob, ownership_lost

logger = logging.getLogger(__name__)

#: Seconds for which a claim that was given back is remembered as such. A pool's process that has
#: the job asks within ``start.START_WAIT`` (10 s) and two waits for a reply (5 s each); a network
#: that stood still brings the same call again within the time that TCP tries, some minutes.
CALLED_OFF = 300.0

#: Seconds after which no blocking read can wait any more (its block and what it may be overdue).
LONGEST_READ = 60.0

#: Seconds after a doubt was cleared at which it is looked into once more: a network that stood
#: still may have brought another claim to the server since, whose reply nobody waits for.
LATE_CLAIM = 60.0


class InFlight:
    """The jobs in flight of one process, for all its channels on one database.

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
        #: When it is looked into once more (monotonic s).
        self._second_look = math.inf
        #: The jobs whose task is running now; a worker sets it.
        self.running: Callable[[], Collection[Job]] = tuple
        #: How many more wait for a free slot of the pool, or in the pool; a worker sets it.
        self.reserve: Callable[[], int] = int
        #: Queue lists with suspects on probation, as far as this process has heard.
        self.probation: frozenset[str] = frozenset()
        self._alone: Job | None = None
        #: Jobs claimed and not settled -> handed to a pool, which may start it at any moment.
        self._held: dict[Job, bool] = {}
        #: Jobs that run on although the channel that delivered them is closed: they count
        #: against the prefetch of the next, or it would reserve jobs behind them.
        self.outlived: set[Job] = set()
        self._acks = Acks(self.lists, self.scripts)
        #: Jobs whose loss was announced while they ran.
        self._announced: set[Job] = set()
        self._held_aside = Held(self.lists)
        self._returns = Returns(self.lists, self.scripts, self.expires, self._held_aside)
        #: What ``reconcile`` found and gave back, and when (monotonic s).
        self._given_back: dict[tuple[str, str, bytes], float] = {}
        #: Claims that a pool of this process has and may start: owner and claim id.
        self.in_pool: set[tuple[str, str]] = set()
        #: Jobs given back, and when (monotonic s).
        self._called_off: deque[tuple[float, Job]] = deque()
        #: When one was called off last that a pool had (monotonic s).
        self._recalled = -math.inf
        self._lock = threading.RLock()

    # -- what is held

    def __len__(self) -> int:
        return len(self._held)

    def holds(self, job: Job) -> bool:
        """True while ``job`` is claimed here and not settled."""
        return job in self._held

    def take(self, job: Job, asked: float = math.inf) -> bool:
        """Note a job that a blocking read brought; False when it is another's by now.

        Arguments:
            asked: when the read began to wait (monotonic s).

        Raises:
            redis.exceptions.RedisError: that had to be looked up, and could not be.
        """
        with self._lock:
            if self._given_back.get(job[:3], -math.inf) >= asked and not self._is_there(job):
                return False
            self._held[job] = False
            return True

    def _is_there(self, job: Job) -> bool:
        """Whether the private list has one copy more of a job than is held.

        Another channel of this process, in another thread, found the job there and gave it back
        before this reply was read. By now a third one may have claimed it again, and its reply
        may wait to be read: that one has to look as well.
        """
        self._given_back[job[:3]] = monotonic()
        try:
            self._run()  # one that was acked is held until the answer is read
            copies = [j.payload for j in self.lists.in_flight(job.owner, job.queue_list)]
        except RedisError:
            self.doubt = True
            raise
        held = sum(job[:3] == other[:3] and other not in self._held_aside for other in self._held)
        return copies.count(job.payload) > held

    def hand_over(self, job: Job) -> None:
        """Note that a pool has the job: from here on it may start without our knowledge."""
        with self._lock:
            if job in self._held:
                self._held[job] = True
                self.in_pool.add((job.owner, job.claim_id))

    def ended(self, job: Job) -> None:
        """Note that the pool is done with the job, or never had it."""
        with self._lock:
            if job in self._held:
                self._held[job] = False

    def let_go(self, job: Job) -> None:
        """Forget a job that was taken away, and say so."""
        self.drop(job)
        self.lost(job)
        with contextlib.suppress(RedisError), self._lock:  # the next doubt mends it
            self._forget_running(job.owner)

    def drop(self, job: Job) -> None:
        """Note that a job has left the private list, or was never started."""
        with self._lock:
            self._held.pop(job, None)
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
            self.scripts.run_all(self._held_aside.unhold([job]))
            self._held_aside.forget(job)

    # -- claims and settlements

    def claim(
        self, owner: str, lists: Sequence[str], most: int, turn: int, confirm: Sequence[Job]
    ) -> Claims:
        """Send what waits to be settled and claim, in one round trip.

        Raises:
            redis.exceptions.RedisError: the server could not be asked; what waits still does,
                and a claim whose reply was lost is found by ``reconcile``.
        """
        with self._lock:
            self._send_returns()
            reply = self._run(self.lists.claim(owner, lists, most, turn, confirm))
            if isinstance(reply, Exception):
                raise reply
            claims = self.lists.claims(owner, lists, reply, confirm)
            for claimed in claims.jobs:
                self._held[claimed.job] = False
            for job, still_ours in zip(confirm, claims.confirmed, strict=False):
                if still_ours is None:
                    self.let_go(job)
            return claims

    @property
    def busy(self) -> bool:
        """Whether something runs here; outside a worker, whatever is held and not acked may."""
        if self.running is tuple:
            return not self._held.keys() <= set(self._acks)
        return bool(self.running())

    @property
    def alone(self) -> Job | None:
        """The job on probation that has this process for itself."""
        return self._alone if self._alone in self._held else None

    def unstarted(self, job: Job) -> bool:
        """Whether ``job`` is held, and no pool has it."""
        return self._held.get(job) is False

    def claim_alone(self, owner: str, queue_list: str) -> Claimed | None:
        """Claim the next suspect of a queue list, if nothing runs here; None if there is none.

        Raises:
            redis.exceptions.RedisError: the server could not be asked; what it may have claimed
                is found by ``reconcile``.
        """
        with self._lock:
            self.flush()
            call = self.lists.claim_alone(owner, queue_list)
            try:
                reply = self.scripts.ask(call)
            except BaseException:
                self.doubt = True
                raise
            if reply[0] == b"none":
                self.probation -= {queue_list}
            if reply[0] != b"ok":
                return None
            self._alone = Job(owner, queue_list, reply[1], call.args[-1])
            self._held[self._alone] = False
            return Claimed(self._alone, earlier_of(reply[2]))

    def ack(self, claimed: Claimed) -> None:
        """Settle a job with whatever is sent next; one given back is not ours."""
        with self._lock:
            job = claimed.job
            if job in self._held:
                self._returns.forget(job)
                self.in_pool.discard((job.owner, job.claim_id))
                self._acks.add(claimed)

    def flush(self) -> None:
        """Send what waits to be settled now, and see that it is.

        Raises:
            redis.exceptions.RedisError: it still waits, and is sent again.
        """
        with self._lock:
            self._send_returns()
            self._run()

    def post(self) -> None:
        """Send what waits to be settled; whatever is sent next reads the answer.

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
        return next(iter(self._acks.waiting()), None)

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
        moves = [*self._held_aside.unhold(self._acks.waiting()), *self._held_aside.hold()]
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
            if job not in self._announced:
                self.lost(job)
        self._announced.difference_update(answers.settled)
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

    def lost(self, job: Job) -> None:
        """Say that a job was taken away."""
        envelope = parse(job.payload)
        logger.warning(
            "Job %s[%s] from queue %s is no longer ours (owner %s was taken for dead, or the "
            "job was moved by hand): it may run again elsewhere. Its ack removed nothing of "
            "anybody else's.",
            envelope.task,
            envelope.task_id or digest(job.payload),
            job.queue_list,
            job.owner,
        )
        with contextlib.suppress(RedisError):  # counting is not worth a failure
            self.lists.client.hincrby(self.lists.keys.stats, "ownership_lost", 1)
        ownership_lost.send(sender=None, lost=LostJob.of(job, envelope))

    def taken_away(self, owner: str) -> None:
        """An owner of ours was reaped: announce what runs, forget what was to be given back.

        Its acks are still sent, each for its old private list: one that comes before the
        reaper saves a second run, and one that comes later removes nothing of anybody else's.
        """
        with self._lock:
            for waiting in self._returns.of(owner):
                self.drop(waiting)
            lost = {job for job in self.running() if job.owner == owner and job in self._held}
            self._announced |= lost
        for job in lost:
            self.lost(job)

    # -- requeue

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

    def _send_returns(self) -> None:
        """Send the requeues that wait.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked.
        """
        if not self._returns:
            return
        in_pool = {job for job, handed_over in self._held.items() if handed_over}
        for job, outcome in self._returns.send(in_pool).items():
            if outcome == STARTED:
                self.outlived.add(job)
                continue
            self._called_off.append((monotonic(), job))
            if job in in_pool:
                self._recalled = monotonic()
            self.drop(job)

    @property
    def pool_may_ask(self) -> bool:
        """Whether a pool may still come to a job that was called off, and ask for it."""
        return monotonic() - self._recalled < CALLED_OFF

    def long_called_off(self) -> list[Job]:
        """Jobs that nobody can ask about any more, once; their marks may go."""
        with self._lock:
            found = []
            while self._called_off and monotonic() - self._called_off[0][0] > CALLED_OFF:
                found.append(self._called_off.popleft()[1])
            return found

    def in_doubt(self) -> bool:
        """Whether ``reconcile`` has to look at the private lists."""
        return self.doubt or monotonic() >= self._second_look

    def reconcile(self, owner: str, lists: Iterable[str]) -> int:
        """Give back what the private lists hold and nobody here does; the number of jobs.

        These are claims whose reply was lost, or is on its way to another thread's channel. What
        was settled here lately is settled again: a replica that was promoted had not seen it.
        """
        with self._lock:
            self.flush()
            # A doubt that comes up from here on asks for another look.
            self.doubt = False
            try:
                return self._reconcile(owner, self._unknown(owner, lists))
            except RedisError:
                self.doubt = True
                raise

    def _reconcile(self, owner: str, unknown: Iterable[Job]) -> int:
        now = monotonic()
        self._given_back = {
            copies: at for copies, at in self._given_back.items() if now - at < LONGEST_READ
        }
        lately = self._acks.lately()
        back = []
        for job in unknown:
            self._held[job] = False
            if lately[trace(job)] > 0:
                lately[trace(job)] -= 1
                self._acks.add(Claimed(job, Earlier()))
            else:
                back.append(job)
                self._given_back[job[:3]] = now
        self._second_look = math.inf if now >= self._second_look else now + LATE_CLAIM
        self.requeue(back)
        self.flush()
        self._forget_running(owner)
        return len(back)

    def _forget_running(self, owner: str) -> None:
        """Claims that were settled or given back under a new id leave nothing that runs.

        What they left would forbid every other start, or keep suspects from their turn.
        """
        self.lists.forget_running(owner, {job.claim_id for job in self._held if job.owner == owner})

    def _unknown(self, owner: str, lists: Iterable[str]) -> list[Job]:
        unknown: list[Job] = []
        for name in lists:
            for job in self._held_aside.look(owner, name):
                self._held_aside.forget(job)
            held = Counter(
                job.payload
                for job in self._held
                if job[:2] == (owner, name) and job not in self._held_aside
            )
            for payload in (job.payload for job in self.lists.in_flight(owner, name)):
                if held[payload] > 0:
                    held[payload] -= 1
                else:
                    unknown.append(self.lists.job(owner, name, payload))
        return unknown

    def give_all_back(self) -> None:
        """Give back whatever is still held, newest claims first (the process ends)."""
        with self._lock:
            # Nothing is about to start any more: the pool has ended.
            self._held = dict.fromkeys(self._held, False)
            self.requeue(reversed(list(self._held)))

    @property
    def settlements(self) -> Mapping[str, int]:
        """How much waits to be sent: acks and returns (for tests and ``status``)."""
        return {"acks": len(self._acks), "returns": len(self._returns)}

    @property
    def unsent(self) -> bool:
        """Whether something waits for the next round trip."""
        return bool(self._acks.unsent or self._returns or self._held_aside)
