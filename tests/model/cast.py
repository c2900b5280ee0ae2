"""Processes that claim and run jobs, and passes that reap them: each can be stopped anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis
from greenlet import GreenletExit, getcurrent, greenlet

from celery_superfetch.migration.to_stock import Rollback
from celery_superfetch.model.job import Claimed, Job, digest
from celery_superfetch.model.owner_rank import OwnerRank
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.process import ProcessImage
from celery_superfetch.model.step import Claim
from celery_superfetch.model.strikes import Limits
from celery_superfetch.reaper.reaper import Reaper
from celery_superfetch.store.owner_registry import OwnerRegistry
from celery_superfetch.store.private_lists import PrivateLists
from celery_superfetch.store.redis.call import Call
from celery_superfetch.store.strike_counters import StrikeCounters
from model.scripts_seen import Truth
from support.driver import Driver
from support.sends import Sends
from support.workers.bench import Bench


class Stage:
    """Stands between the structures and the server: shows each script to the model, and lets a
    pass wait before each of its steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.truth: Truth | None = None
        #: Claims that were given back on purpose, as they were sent.
        self.requeues: list[Call] = []
        self.sends = Sends(monkeypatch, before=self._wait, carried_out=self._show)

        def waiting(read: Callable[..., Any]) -> Callable[..., Any]:
            def wait_and_read(*args: Any, **kwargs: Any) -> Any:
                self._wait()
                return read(*args, **kwargs)

            return wait_and_read

        # What a decision is built on may change between these, and before it is carried out.
        for owner, name in ((PrivateLists, "held"), (StrikeCounters, "counters")):
            monkeypatch.setattr(owner, name, waiting(getattr(owner, name)))
        end_probation = Rollback._end_probation

        def ended(*args: Any) -> None:
            self._wait()
            end_probation(*args)
            if self.truth is not None:
                self.truth.drain_probation()

        monkeypatch.setattr(Rollback, "_end_probation", ended)
        # Of two that were marked, the clock decides whether it was in the same ms.
        tombstones = OwnerRegistry.tombstones
        monkeypatch.setattr(
            OwnerRegistry, "tombstones", lambda registry: dict(sorted(tombstones(registry).items()))
        )

    def _show(self, calls: Sequence[Call], replies: Sequence[Any]) -> None:
        if self.truth is None:
            return
        for call, reply in zip(calls, replies, strict=True):
            self.truth.saw(call, reply)
            # Of one job, which was there: its claim id and record come after seven others.
            if call.name == "requeue" and reply == [] and len(call.args) == 9:
                self.requeues.append(call)

    def _wait(self) -> None:
        if getcurrent().parent is not None:
            getcurrent().parent.switch()


class Pass:
    """A reaper, or an operator's rollback, that goes from step to step."""

    def __init__(self, bench: Bench, sender: object, limits: Limits) -> None:
        self.reaper: Reaper = bench.reaper(sender=sender, limits=limits)
        self._going: greenlet | None = None

    def begin(self, rolls_back: bool) -> None:
        """A pass of the reaper; or ``celery superfetch rollback --force``."""
        act = (lambda: Rollback(self.reaper).run(force=True)) if rolls_back else self.reaper.reap
        self._going = greenlet(act)
        self.go_on(1)

    @property
    def going(self) -> bool:
        return self._going is not None

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            if self._going is not None:
                report = self._going.switch()
                if self._going.dead:
                    self._going = None
                    # Who is heard between a rollback's look and its mark is spared, and told of.
                    alive = [row["owner"] for row in getattr(report, "alive", ())]
                    spared = [owner for owner in alive if owner not in report.owners]
                    assert report.errors <= len(spared)

    def end(self) -> None:
        """Go to the end of the pass."""
        while self._going is not None:
            self.go_on(1)

    def die(self) -> None:
        """Its process is killed before its next step."""
        if self._going is not None:
            self._going.throw(GreenletExit)
            self._going = None


#: Seconds for which a job is parked that cannot run now.
LATER_S = 3600
#: All workers serve the same queue lists.
GROUP = "group"


class Worker:
    """A process that claims and runs jobs."""

    def __init__(
        self, bench: Bench, names: Callable[[], str], lists: Sequence[str], slots: int
    ) -> None:
        self.bench = bench
        #: How many jobs may run at once, and are recorded by their claim.
        self.slots = slots
        self._names, self._lists = names, lists
        self.driver = Driver.over(bench.database)
        #: Delivered, or in the pool's queue; among these are some that were given back.
        self.waits: list[Claimed] = []
        #: Queue list from which something landed -> what a read brought last.
        self.landed: dict[str, bytes] = {}
        self.runs: list[Claimed] = []
        #: False: the process has ended.
        self.alive = True
        self.register()

    def __repr__(self) -> str:
        return f"worker {self.owner.rpartition('|')[2]}"

    def register(self) -> None:
        """Be an owner, a new one if it was one before."""
        image = ProcessImage.current()
        record = OwnerRecord.of_process(
            f"{image.host}|{image.pid}|{self._names()}", image, self.bench.config
        )
        self.record = record.with_(lists=dict.fromkeys(self._lists, 0), group=GROUP)
        self.owner = self.record.owner
        #: By its last heartbeat; out of date, or wrong, until the next.
        self.rank = OwnerRank()
        self.looks_dead = False
        answer = self.bench.registry.register(self.record)
        assert answer.status == "ok"
        self.rank = answer.rank

    def look_dead(self) -> None:
        """From here on every judge takes its pid for another process's."""
        self.bench.client.hset(self.bench.keys.owner_record(self.owner), "start_time", "0")
        self.looks_dead = True

    def die(self) -> None:
        self.look_dead()
        self.alive = False

    def heartbeat(self, waits: bool = False, **changed: str) -> str:
        before = self.bench.registry.owners().get(self.owner, 0)
        while self.bench.database.server_time() <= before:
            pass  # in the same ms a mark could not tell this heartbeat from the last one
        answer = self.bench.registry.heartbeat(self.record, 0, changed, waits=waits)
        self.rank = answer.rank
        return answer.status

    def blocks_on(self) -> list[str]:
        """The queue lists that its blocking reads wait on, by its place."""
        return self.rank.share(self._lists, self.rank.read_count(len(self._lists)))

    def claim(self, most: int) -> None:
        free = max(0, self.slots - len(self.waits) - len(self.runs))
        landed, self.landed = self.landed, {}
        claims = self.driver.claim(self.owner, self._lists, most, 1, landed, free, landed)
        self.waits += claims.jobs
        # What landed before its queue was paused waits there, as what is still on the queue.
        self.driver.lists.return_landed(self.owner, dict.fromkeys(claims.paused & {*landed}, 0))

    def land(self, queue_list: str) -> bytes | None:
        """A blocking read brings a job from a list, which the next claim is going to name."""
        keys = self.bench.keys
        landing = keys.landing(self.owner, queue_list)
        raw = self.bench.client.lmove(keys.queue(queue_list), landing, "RIGHT", "LEFT")
        if raw is not None:
            self.landed[queue_list] = raw
        return raw

    def return_landed(self) -> None:
        """Give back what landed."""
        self.landed.clear()
        self.driver.lists.return_landed(self.owner, dict.fromkeys(self._lists, 0))

    def deliver(self, reserves: bool = True) -> None:
        """Give what was claimed to its consumer, which reports the start of what it ``reserves``;
        nothing starts yet."""
        for claimed in self.waits:
            if reserves:
                self.driver.reserve(claimed.job)
            self.driver.deliver(claimed.job)

    def claim_alone(self, queue_list: str) -> bool:
        """As ``Probation`` does: not while something runs, or is yet to be delivered."""
        if self.runs:
            return False
        self.deliver()
        claimed = self.driver.claim_suspect(self.owner, queue_list)
        if claimed is not None:
            self.waits.append(claimed)
        return claimed is not None

    def claim_and_lose_the_reply(self, stage: Stage) -> None:
        stage.sends.lose = True
        with pytest.raises(redis.ConnectionError):
            self.claim(1)

    def claim_alone_and_lose_the_reply(self, queue_list: str, stage: Stage) -> None:
        driver = self.driver
        if self.runs or driver.has_delivered or driver.needs_reconcile:  # then it is not asked for
            return
        self.deliver()
        stage.sends.lose = True
        with pytest.raises(redis.ConnectionError):
            self.claim_alone(queue_list)

    def reconcile(self) -> None:
        """Look for what lost replies spoke of; a suspect among it is alone no longer."""
        self.landed.clear()
        self.driver.reconcile(self.owner, dict.fromkeys(self._lists, 0))

    def start(self, claimed: Claimed) -> bool:
        """Hand a job to the pool, as ``Gate`` does; whether it runs."""
        job, alone = claimed.job, self.driver.solo
        if not self.driver.may_start(job):
            self.waits.remove(claimed)
        elif alone not in (None, job):
            self.waits.remove(claimed)
            self.driver.requeue([job])
        elif not (alone and self.runs) and not self._was_reaped(job):
            started = bool(self.driver.start(job))
            assert started != self.driver.needs_reconcile
            if not started:
                return False
            self.waits.remove(claimed)
            self.runs.append(claimed)
            return True
        return False

    def _was_reaped(self, job: Job) -> bool:
        """Not even a mark in the very ms of its verdict comes while a start permit lasts."""
        return self.bench.client.hget(self.bench.keys.owner_record(job.owner), "state") == b"reaped"

    def move(self, claimed: Claimed, event: str, where: str, leaves: bool) -> None:
        """Let one thing happen to a job that it holds.

        Arguments:
            leaves: its consumer forgets it then.
        """
        if event == "finish":
            self.finish(claimed)
            self.driver.flush()
        elif event == "postpone":
            self.waits.remove(claimed)
            self.driver.postpone(claimed.job, LATER_S)
            self.driver.flush()
        elif event in ("requeue", "close"):
            if leaves:
                self.waits.remove(claimed)
            getattr(self.driver, event)([claimed.job], where)
        else:
            getattr(self.driver, event)(claimed.job)

    def finish(self, claimed: Claimed) -> None:
        """It is done, and settled with the next claim or flush."""
        (self.runs if claimed in self.runs else self.waits).remove(claimed)
        self.driver.finish(claimed)

    def publish_step(self, claimed: Claimed, step: bytes, number: int, queue_list: str) -> None:
        """It sends what follows it."""
        job = claimed.job
        claim = Claim("here", self.driver.lists.key_of(job), job.claim_id, claimed.token)
        name = f"{digest(step)}:{number}"
        self.driver.lists.publish_step(name, step, [queue_list], 0, "", claim)

    def reject(self, claimed: Claimed) -> None:
        """A task raised ``Reject(requeue=True)``."""
        self.runs.remove(claimed)
        self.driver.requeue([claimed.job])

    def postpone(self, claimed: Claimed) -> None:
        """Its run ends, and it is to be tried later."""
        self.runs.remove(claimed)
        self.driver.postpone(claimed.job, LATER_S)
        self.driver.flush()

    def lose_child(self, claimed: Claimed, sender: object, limits: Limits) -> None:
        """The pool child that ran it was lost."""
        self.runs.remove(claimed)
        self.driver.recover_or_kill(claimed.job, "pool child lost", sender, limits)

    def learn(self) -> None:
        """Hear that it was taken for dead, and go on as a new owner."""
        self.driver.learn(self.owner)
        self.return_landed()
        self.register()

    def leave(self) -> None:
        """End in order; with a late claim in its lists it is left to the reaper."""
        self.driver.flush()
        self.return_landed()
        self.driver.leave()
        self.waits.clear()
        self.alive = False
        if self.bench.registry.leave(self.record, 0) > 0:
            self.look_dead()
