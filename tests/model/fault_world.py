"""One process with its jobs in flight, on connections that fail: what it may do, and what must hold
when it has settled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from time import time
from types import TracebackType
from typing import Self

import redis

from celery_superfetch.model.job import Claimed, Job, digest, parse
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.process import ProcessImage
from celery_superfetch.model.strikes import Limits
from celery_superfetch.signals import LostJob, ownership_lost
from celery_superfetch.store.database import Database
from celery_superfetch.store.private_lists import LARGE_BYTES, WAITS
from celery_superfetch.store.redis.call import Call
from celery_superfetch.store.redis.scripts import LUA, Scripts
from model.fault_invariants import broken_invariants, claims_in, name, notes_in
from support.driver import Driver
from support.servers.faulty import Fault, Faults, Point
from support.workers.bench import Bench, payload

#: Queue list -> ms of its x-expires.
QUEUES = {"mail": 0, "post": 3_600_000}
JOBS_PER_QUEUE = 6
FAR_FUTURE_MS = 10**15
LONG_AGO_S = 1e6


class Broken(AssertionError):
    """An invariant that does not hold."""


class World:
    """A process with an owner and two channels, and what it did.

    Each public method without arguments is something that may happen; where no job fits, nothing
    happens. It may raise what a fault raises.
    """

    def __init__(self, client: redis.Redis, faults: Faults, seed: int) -> None:
        faults.reset()
        self.client, self.faults = client, faults
        self.queues = QUEUES
        self.bench = Bench(client)
        self.keys = self.bench.keys
        database = Database(faults.client, self.bench.config)
        database.is_registered = self.bench.database.is_registered
        self.driver = Driver.over(database)
        self.driver.expires_ms_by_list = self.queues
        self.driver.server_time_is(time() * 1000)
        database.scripts.first_line  # noqa: B018 - read once in the life of a process
        if not faults.are_scripts_loaded:
            self._load_scripts(database.scripts)
        faults.reset_points()
        faults.handler = self.handle_signal
        #: Whether a signal handler reads the replies to what it sends.
        self.handler_waits = True
        self.random = random.Random(seed)
        self._nonces = count(1)
        self.owners: list[str] = []
        #: Owners that were reaped and have not heard of it.
        self.unheard: list[str] = []
        self.reaped: set[str] = set()
        self.claimed: dict[Job, Claimed] = {}
        self.channel_of: dict[Job, int] = {}
        #: Jobs that their claim recorded as running, and that have not started.
        self.recorded: set[Job] = set()
        #: Jobs that have not started, and may be recorded as running: a reply was lost.
        self.perhaps_recorded: set[Job] = set()
        self.landed: dict[str, bytes] = {}  # queue list -> what a read brought last
        self.has_arrived_late = False
        #: Claims of jobs that were parked, or are to be with the next send.
        self.parked: set[str] = set()
        self.finished: set[bytes] = set()
        #: Jobs that a reaper took from this process: (owner, payload).
        self.taken: set[tuple[str, bytes]] = set()
        self.announced: Counter[tuple[str, bytes]] = Counter()
        self.stops: Counter[bytes] = Counter()
        #: How often a job has lost a process at most.
        self.strikes: Counter[bytes] = Counter()
        #: Jobs whose pool process was lost, and which are not recovered yet.
        self.without_child: set[Job] = set()
        #: Jobs that an exception has taken from a claim or a backlog: no channel has them.
        self.strays: set[Job] = set()
        self.states_seen: Counter[str] = Counter()
        self.jobs = self._publish()
        self.register()

    def _load_scripts(self, scripts: Scripts) -> None:
        """Load all scripts into the server: a run in which it forgets none needs no second call."""
        with self.client.pipeline(transaction=False) as pipe:
            for name in {path.stem for path in LUA.glob("*.lua")} - {"shared"}:
                _, text, *_ = scripts.command(Call(name, [], [], whole=True))
                pipe.script_load(text)
            pipe.execute()
        self.faults.are_scripts_loaded = True

    def __enter__(self) -> Self:
        ownership_lost.connect(self._hear_announcement)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ownership_lost.disconnect(self._hear_announcement)

    def _hear_announcement(self, lost: LostJob, **_: object) -> None:
        self.announced[lost.owner, lost.payload] += 1

    def _publish(self) -> list[bytes]:
        """Empty the database and publish jobs; return them."""
        jobs = []
        with self.client.pipeline(transaction=False) as pipe:
            pipe.flushdb()
            for queue_list, expires_ms in self.queues.items():
                # A claim does not send a large one again that a blocking read has brought.
                some = [
                    payload(f"{queue_list}-{n}", queue_list, filler="x" * (n % 2 * LARGE_BYTES))
                    for n in range(JOBS_PER_QUEUE)
                ]
                pipe.lpush(self.keys.queue(queue_list), *some)
                if expires_ms:
                    pipe.pexpire(self.keys.queue(queue_list), expires_ms)
                jobs += some
            pipe.execute()
        return jobs

    # -- the owner

    @property
    def owner(self) -> str:
        return self.owners[-1]

    def register(self) -> None:
        """Register this process under a new name, if its old one was reaped."""
        if self.owners and self.owner not in self.reaped:
            return
        image = ProcessImage.current()
        name = f"{image.host}|{image.pid}|{next(self._nonces):04}"
        record = OwnerRecord.of_process(name, image, self.bench.config).with_(lists=self.queues)
        assert self.bench.registry.register(record).status == "ok"
        self.owners.append(name)
        self.landed.clear()
        self.driver.heartbeat_confirmed(name)

    def reap(self) -> None:
        """Let a reaper declare this process dead and recover its jobs."""
        if self.owner in self.reaped:
            return
        self.driver.heartbeat_confirmed(self.owner, LONG_AGO_S)
        held = [job.payload for job in self.bench.held(self.owner)]
        for queue_list in self.queues:
            held += self.bench.landed(self.owner, queue_list)
        self.client.hset(self.keys.owner_record(self.owner), "start_time", "0")
        assert self.bench.reaper().reap().recovered == len(held)
        self.taken.update((self.owner, raw) for raw in held)
        self.strikes.update(held)
        self.reaped.add(self.owner)
        self.unheard.append(self.owner)

    def hear(self) -> None:
        """Learn that an owner of this process was reaped."""
        if not self.unheard:
            return
        owner = self.unheard.pop(0)
        running = [job for job in self._where(self.driver.is_running) if job.owner == owner]
        self.driver.learn(owner)
        for job in filter(self.driver.is_running, running):
            lost = owner, job.payload
            if lost in self.taken and not self.announced[lost]:
                raise Broken(f"ownership of a running job was lost, and not announced: {name(job)}")

    # -- the life of a job

    def claim(self) -> None:
        self._claim(self.random.randint(1, 4), self.random.randint(0, 2))

    def claim_to_start(self) -> None:
        """Claim jobs, the first of which are recorded as running at once."""
        self._claim(4, 2)

    def _claim(self, most: int, starts: int) -> None:
        self._recover_again()
        landed = {} if self.owner in self.reaped else self.landed
        self.landed = {}
        claims = self.driver.claim(self.owner, [*self.queues], most, 1, landed, starts, landed)
        channel = self.random.randint(0, 1)
        for at, claimed in enumerate(claims.jobs):
            self._note_claim(claimed, channel, recorded=at < claims.started)
        if claims.started:
            if self.driver.solo is not None:
                raise Broken("a claim recorded starts beside a suspect that runs alone")
            self._check_company(f"a claim recorded {claims.started} jobs as running")

    def claim_all(self) -> None:
        """Claim what there is, by one channel."""
        self._recover_again()
        for claimed in self.driver.claim(self.owner, [*self.queues], 100).jobs:
            self._note_claim(claimed, 0, recorded=False)

    def claim_in_vain(self) -> None:
        """Claim, and lose the reply."""
        self.faults.loses_next_reply = True
        try:
            self.claim()
        finally:
            self.faults.loses_next_reply = False

    def claim_suspect(self) -> None:
        """Claim a job on probation to run alone, as the fetch loop does when nothing runs."""
        self._recover_again()
        if self._where(self.driver.is_running):
            return
        for job in self._where(self.driver.may_start):
            self.driver.reserve(job)
            self._deliver(job)
        for queue_list in sorted(self.driver.suspect_lists):
            claimed = self.driver.claim_suspect(self.owner, queue_list)
            if claimed is not None:
                self._note_claim(claimed, 0, recorded=True)
                return

    def claim_suspect_alongside(self) -> None:
        """Claim a job on probation to run alongside others, as after a quiesce in vain."""
        self._recover_again()
        for queue_list in sorted(self.driver.suspect_lists):
            for raw in self.bench.on_probation(queue_list)[:1]:
                self.client.hset(self.keys.history(digest(raw)), "quiesced", 1)
            claimed = self.driver.claim_suspect_alongside(self.owner, queue_list)
            if claimed is not None:
                self._note_claim(claimed, 0, recorded=True)
                return

    def land(self) -> None:
        """Let a blocking read bring a job, which the next claim is to name: from any list, as a
        place may be wrong."""
        queue_list = self.random.choice([*self.queues])
        if self.owner not in self.reaped and (
            raw := self.client.lmove(
                self.keys.queue(queue_list),
                self.keys.landing(self.owner, queue_list),
                "RIGHT",
                "LEFT",
            )
        ):
            self.landed[queue_list] = raw

    def _note_claim(self, claimed: Claimed, channel: int, *, recorded: bool) -> None:
        self.claimed[claimed.job] = claimed
        self.channel_of[claimed.job] = channel
        if recorded:
            self.recorded.add(claimed.job)

    def deliver(self) -> None:
        if (job := self._pick(self.driver.may_start)) is not None:
            self._deliver(job)

    def _deliver(self, job: Job) -> None:
        was_recorded = job in self.recorded
        if was_recorded:
            self.recorded.discard(job)
            self.perhaps_recorded.add(job)
        self.driver.deliver(job)
        if was_recorded:
            self.perhaps_recorded.discard(job)

    def reserve(self) -> None:
        job = self._pick(lambda job: "reserve" in self.driver.events(job))
        if job is not None:
            self.driver.reserve(job)

    def start(self) -> None:
        """Start a job as the gate does: beside a suspect that runs alone no other starts."""
        job = self._pick(self._has_permit) or self._pick(self.driver.may_start)
        solo = self.driver.solo
        if job is None:
            return
        if solo not in (None, job):
            self.driver.requeue([job])
        elif solo is None or not self._where(self.driver.is_running):
            self._start(job)

    def start_suspect(self) -> None:
        """Start the job on probation that was claimed to run alone."""
        if (job := self._pick(lambda job: job == self.driver.solo)) is not None:
            self._start(job)

    def may_be_recorded(self, job: Job) -> bool:
        """Return whether a job that has not started may be recorded as running."""
        return job in self.recorded or job in self.perhaps_recorded

    def _has_permit(self, job: Job) -> bool:
        return job.owner == self.owner and self.driver.may_start(job)

    def _start(self, job: Job) -> None:
        hits, is_certain = self.faults.hits.total(), job not in self.perhaps_recorded
        self.perhaps_recorded.add(job)
        deadline = self.driver.start(job)
        if deadline:
            if not self.driver.is_running(job):
                raise Broken(f"a job may begin that is {self.driver.state(job)}: {name(job)}")
            self.recorded.discard(job)
            self._check_company("a job was started")
        never_sent = self.faults.last_hit == (Fault.LOST, Point.SEND)
        if is_certain and (self.faults.hits.total() == hits or never_sent):
            self.perhaps_recorded.discard(job)

    def _check_company(self, what: str) -> None:
        """Raise Broken if a job was started beside one that may be a suspect."""
        if self.driver.solo is not None and len(self._where(self.driver.is_running)) > 1:
            raise Broken(f"{what} beside a suspect that runs alone")
        known = {job.claim_id for job in self.driver}
        fields = self.client.hgetall(self.keys.private(self.owner))
        running = claims_in(fields).keys() - notes_in(fields, WAITS) - self.parked
        if not self.has_arrived_late and not running <= known:
            raise Broken(f"{what}, and the server has unknown jobs that run")

    def finish(self) -> None:
        if (job := self._pick(self.driver.is_running)) is not None:
            self._finish(job)

    def revoke(self) -> None:
        """Ack a job that has not started."""
        if (job := self._pick(self.driver.is_reserved)) is not None:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        self.finished.add(job.payload)
        self.driver.finish(self.claimed[job])

    def interrupt_delivery(self) -> None:
        """Let an exception come just after a job was taken from the backlog of its channel."""
        job = self._pick(lambda job: self.driver.state(job) == "FETCHED")
        if job is not None:
            self.strays.add(job)

    def tick(self) -> None:
        """Let the channels requeue the jobs that none of them has."""
        self.driver.requeue_strays(job for job in self.driver if job not in self.strays)

    def requeue(self) -> None:
        if (job := self._pick(self.driver.may_start)) is not None:
            self.driver.requeue([job], self.random.choice(["front", "back"]))

    def reject(self) -> None:
        """Requeue a job that has run, as a task does that raises ``Reject(requeue=True)``."""
        if (job := self._pick(self.driver.is_running)) is not None:
            self.driver.requeue([job])

    def stop_run(self) -> None:
        """Cut a run short, since the worker is stopping."""
        if (job := self._pick(self.driver.is_running)) is not None:
            self.stops[job.payload] += 1
            self.driver.stop_run(job)
            self.driver.requeue([job])

    def lose_child(self) -> None:
        """Lose the pool process that ran a job: the job is recovered, with a strike."""
        if (job := self._pick(self.driver.is_running)) is not None:
            self.strikes[job.payload] += 1
            self.without_child.add(job)
            self._recover(job)

    def _recover(self, job: Job) -> None:
        limits = Limits.of(self.bench.config)
        self.driver.recover_or_kill(job, "pool process lost", None, limits)
        self.without_child.discard(job)

    def _recover_again(self) -> None:
        """Recover the jobs whose recovery raised, as a worker does before it claims again."""
        for job in [*self.without_child]:
            self._recover(job)

    def withdraw_start(self) -> None:
        """Let a pool refuse a job that it got too late."""
        if (job := self._pick(self.driver.is_running)) is None:
            return
        self.driver.withdraw_start(job)
        if not self.driver.may_start(job):  # its channel is closed
            return
        self.perhaps_recorded.add(job)
        with suppress(redis.RedisError, OSError):
            self.driver.flush()
            self.perhaps_recorded.discard(job)

    def close_first(self) -> None:
        self._close(0)

    def close_second(self) -> None:
        self._close(1)

    def _close(self, channel: int) -> None:
        jobs = self._where(lambda job: self.channel_of.get(job) == channel)
        self.driver.close(reversed(jobs))

    def put_on_probation(self) -> None:
        if (job := self._pick(self.driver.is_reserved)) is not None:
            self.driver.put_on_probation(job)

    def park(self) -> None:
        job = self._pick(self.driver.may_start)
        if job is not None and self.driver.park(job, FAR_FUTURE_MS):
            self.parked.add(job.claim_id)

    def postpone(self) -> None:
        """Park a job that ran and is to run again later, or one that this process cannot run."""
        job = self._pick(self.driver.is_running) or self._pick(self.driver.may_start)
        if job is not None:
            self.parked.add(job.claim_id)
            self.driver.postpone(job, FAR_FUTURE_MS / 1e6)

    def recall(self) -> None:
        """Make all parked jobs due, and move them to their queues."""
        self.driver.recall({str(parse(raw).task_id) for raw in self.jobs})
        self.driver.release_due()

    def flush(self) -> None:
        self.driver.flush()

    def post(self) -> None:
        self.driver.post()

    def reconcile(self) -> None:
        self.landed.clear()
        self.driver.reconcile(self.owner, self.queues)

    def second_check(self) -> None:
        """Look for lost claims once more, if that is to be done. Late commands arrive before it."""
        self.arrive()
        if self.driver.awaits_second_check:
            self.driver.make_second_check_due()
            self.reconcile()

    def arrive(self) -> None:
        """Let the server get what the network has held back."""
        self.has_arrived_late |= bool(self.faults.late)
        self.faults.deliver_late()

    def leave(self) -> None:
        """Requeue all jobs, as at the end of the process."""
        self.driver.flush()
        self.stops.update(job.payload for job in self._where(self.driver.is_running))
        self.driver.leave()

    def handle_signal(self) -> None:
        """Requeue, in the midst of anything, what has not started, and finish one job."""
        with suppress(redis.RedisError, OSError):
            self.driver.requeue(reversed(self._where(self.driver.may_start)))
            self.finish()
            if self.handler_waits:
                self.driver.flush()
            else:
                self.driver.post()

    def _where(self, fits: Callable[[Job], bool]) -> list[Job]:
        gone = self.without_child | self.strays
        left = [job for job in self.driver if job.claim_id not in self.parked and job not in gone]
        return [*filter(fits, left)]

    def _pick(self, fits: Callable[[Job], bool]) -> Job | None:
        """Choose a job that this process knows by the reply to a claim."""
        jobs = [job for job in self._where(fits) if job in self.claimed]
        return self.random.choice(jobs) if jobs else None

    # -- the end

    def settle(self, *, late_before: bool) -> None:
        """Let the network and the process do what they still have to, without a fault.

        Arguments:
            late_before: late commands arrive before the process reconciles, not between the two
                checks that it makes.
        """
        self.faults.disarm()
        if late_before:
            self.arrive()
        self.register()
        while self.unheard:
            self.hear()
        self.driver.retry_requeues_now()
        with suppress(redis.ResponseError):  # the reply to an earlier send
            self.driver.flush()
        self.driver.flush()
        if self.driver.needs_reconcile:
            self.reconcile()
        self.arrive()
        self._recover_again()
        self.tick()
        self.second_check()
        self.driver.flush()
        self.driver.examine_missing()
        self.driver.release_connection()

    def check(self) -> None:
        """Raise Broken if an invariant does not hold."""
        for sentence in broken_invariants(self):
            raise Broken(sentence)
