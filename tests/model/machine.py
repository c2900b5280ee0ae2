"""The state machine of `test_stateful`: workers, reapers and their operators, in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_superfetch.model.job import Claimed
from celery_superfetch.model.owner_rank import OwnerRank
from celery_superfetch.model.strikes import Limits
from celery_superfetch.reaper.report import Report
from model.cast import GROUP, Pass, Stage, Worker
from model.choices import (
    INNOCENT,
    JOBS,
    KILLERS,
    NAMES,
    POISON,
    QUEUES,
    Choice,
    Jobs,
    all_settled,
    anybody,
    every,
    harmful,
    harmless,
    in_doubt,
    living,
    looking_alive,
    running,
    some,
    unsettled,
)
from model.scripts_seen import Truth
from support.workers.bench import Bench

#: Living workers at a time.
WORKERS = 3
#: Heartbeats of each worker after which no row of a dead owner is left: each removes the one before
#: its own, and `spoil_the_ranks` adds three of a kind.
HEARTBEATS = 4


class Sender:
    """Stands for the app whose guard is asked."""


SENDER = Sender()


def limits_of(bench: Bench) -> Limits:
    """As ``guard.limits_of``, with one task that is never killed."""
    limit = bench.config.strike_limit
    return Limits(
        lambda task: None if task == "shop.spared" else limit, bench.config.recovery_limit
    )


class Fleet(RuleBasedStateMachine):
    """Workers and two reapers on one database."""

    def __init__(
        self, stage: Stage, make_bench: Callable[..., Bench], notable: Counter[str]
    ) -> None:
        super().__init__()
        self.stage, self.make_bench, self.notable = stage, make_bench, notable

    @initialize(strike_limit=st.integers(1, 4), recovery_limit=st.integers(2, 6))
    def open(self, strike_limit: int, recovery_limit: int) -> None:
        self.bench = self.make_bench(strike_limit=strike_limit, recovery_limit=recovery_limit)
        self.bench.client.flushdb()
        limits = limits_of(self.bench)
        self.limits = limits
        self.truth = Truth(self.bench.keys, self.bench.config, limits, KILLERS)
        self.stage.truth, self.stage.sends.lose = self.truth, False
        self.stage.requeues.clear()
        self.workers: list[Worker] = []
        self._minted = 0
        self.reapers = [Pass(self.bench, SENDER, limits) for _ in range(2)]
        for job in (*JOBS, next(iter(POISON))):
            self.publish(job)

    # -- who and what a rule is about

    def _mint(self) -> str:
        self._minted += 1
        return f"{self._minted:04}"

    def who(self, data: st.DataObject, among: Choice) -> Worker:
        return data.draw(st.sampled_from(living(self, among)))

    def which(self, data: st.DataObject, choose: Jobs) -> tuple[Worker, Claimed]:
        """A worker and one of its jobs."""
        worker = self.who(data, lambda worker: bool(choose(worker)))
        jobs = choose(worker)
        names = [f"{n}: {NAMES[c.job.payload]}{c.job.claim_id}" for n, c in enumerate(jobs)]
        return worker, jobs[names.index(data.draw(st.sampled_from(names)))]

    # -- producers, and a person at the dead set

    @rule(job=st.sampled_from(list(JOBS)))
    def publish(self, job: bytes) -> None:
        """A second time, byte for byte, is as good as any."""
        self.bench.push(JOBS[job], job)
        self.truth.publish(JOBS[job], job)

    @precondition(lambda self: +self.truth.dead)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        dead = sorted(self.bench.dead_set.find(), key=lambda job: job.payload)
        assert self.bench.retry(data.draw(st.sampled_from(dead)))

    @rule(queue=st.sampled_from(QUEUES))
    def pause_or_resume(self, queue: str) -> None:
        """An operator does; from then on no claim takes a job from there, or may again."""
        if queue in self.truth.paused:
            self.truth.paused.discard(queue)
            assert self.bench.paused.resume(queue) is not None
        else:
            self.truth.paused.add(queue)
            assert self.bench.paused.pause(queue, "a person")[1]

    # -- workers

    @precondition(lambda self: len(living(self)) < WORKERS)
    @rule(most=st.integers(0, 4), starts=st.booleans(), slots=st.integers(0, 3))
    def hire(self, most: int, starts: bool, slots: int) -> None:
        """A supervisor starts a worker, and it goes to work: suspects have their turn first."""
        worker = Worker(self.bench, self._mint, QUEUES, slots)
        self.workers.append(worker)
        if most and not any(self._claim_alone(worker, name) for name in self.suspects()):
            self._work(worker, most, starts)

    @some(anybody)
    @rule(data=st.data(), most=st.integers(1, 4), starts=st.booleans(), reserves=st.booleans())
    def claim(self, data: st.DataObject, most: int, starts: bool, reserves: bool) -> None:
        self._work(self.who(data, anybody), most, starts, reserves)

    def _work(self, worker: Worker, most: int, starts: bool, reserves: bool = True) -> None:
        worker.claim(most)
        for claimed in list(worker.waits) if starts else ():
            self._start(worker, claimed)
        worker.deliver(reserves)

    @precondition(lambda self: living(self) and self.suspects())
    @rule(data=st.data(), starts=st.booleans())
    def claim_alone(self, data: st.DataObject, starts: bool) -> None:
        worker, name = self.who(data, anybody), data.draw(st.sampled_from(self.suspects()))
        self._claim_alone(worker, name, starts)

    def _claim_alone(self, worker: Worker, queue_list: str, starts: bool = True) -> bool:
        claimed = worker.claim_alone(queue_list)
        if claimed and starts:
            self._start(worker, worker.waits[-1])
        return claimed

    @precondition(lambda self: self.solitary())
    @rule(data=st.data())
    def end_solitude(self, data: st.DataObject) -> None:
        """It has lasted for long enough: others may start beside the suspect."""
        driver = data.draw(st.sampled_from(self.solitary())).driver
        assert driver.solo is not None
        self.truth.cards[driver.solo.payload].chances += 1
        self.truth.notable["a solitude has its end"] += 1
        driver.end_solo()

    def solitary(self) -> list[Worker]:
        return living(self, lambda worker: worker.driver.solo is not None)

    def suspects(self) -> list[str]:
        """Queue lists with suspects."""
        probation = self.bench.keys.probation
        return [name for name in QUEUES if +self.truth.lists[probation(name)]]

    @some(every)
    @rule(data=st.data(), where=st.sampled_from(["front", "back"]), stays=st.booleans())
    def move(self, data: st.DataObject, where: str, stays: bool) -> None:
        """A job goes from its state to another, by a row of the table that says how.

        What waits is started, settled without a run (it has expired, say), or given back: whoever
        waits for a slot with it may not know yet. What runs goes on when its channel is closed.
        """
        worker, claimed = self.which(data, every)
        driver, job = worker.driver, claimed.job
        before, waits = driver.state(job), claimed in worker.waits
        assert before is not None
        # The other rules say how a run ends.
        events = [event for event in driver.events(job) if waits or event == "close"]
        if not events:  # it runs, and its channel is closed: its end is all that comes
            return None
        event = data.draw(st.sampled_from(events))
        if event == "start":
            return self._start(worker, claimed)
        worker.move(claimed, event, where, leaves=waits and not stays)
        assert driver.state(job) in (driver.state_after(before, event), None)
        self.notable[f"{before} {event}"] += 1

    @some(running)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        """Its task asks for it to be given back."""
        worker, claimed = self.which(data, running)
        worker.reject(claimed)

    @some(running)
    @rule(data=st.data())
    def postpone(self, data: st.DataObject) -> None:
        """Its run ends, and it is to be tried later."""
        worker, claimed = self.which(data, running)
        worker.postpone(claimed)

    @precondition(lambda self: any(+self.truth.lists[self.bench.keys.parked_of(q)] for q in QUEUES))
    @rule()
    def release(self) -> None:
        """What is parked is due."""
        self.bench.parked.release({}, inf)

    @some(running)
    @rule(data=st.data(), step=st.sampled_from(list(INNOCENT)), number=st.integers(0, 3))
    def publish_step(self, data: st.DataObject, step: bytes, number: int) -> None:
        """It sends what follows it, before its end; whoever was taken for dead tries to."""
        worker, claimed = self.which(data, running)
        worker.publish_step(claimed, step, number, INNOCENT[step])

    def _start(self, worker: Worker, claimed: Claimed) -> None:
        if worker.start(claimed):
            self.truth.begins(claimed.job.payload)

    @some(harmless)
    @rule(data=st.data(), send=st.sampled_from(["", "post", "flush"]))
    def finish(self, data: st.DataObject, send: str) -> None:
        worker, claimed = self.which(data, harmless)
        worker.finish(claimed)
        if send:
            getattr(worker.driver, send)()

    @some(unsettled)
    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        self.who(data, unsettled).driver.flush()

    @precondition(lambda self: self.stage.requeues)
    @rule(data=st.data())
    def requeue_again(self, data: st.DataObject) -> None:
        """A network that stood still brings a requeue once more."""
        number = data.draw(st.integers(0, len(self.stage.requeues) - 1))
        assert self.bench.run(self.stage.requeues[number]) == [1], "it finds nothing to do"

    @some(harmful)
    @rule(data=st.data())
    def lose_child(self, data: st.DataObject) -> None:
        worker, claimed = self.which(data, harmful)
        worker.lose_child(claimed, SENDER, self.limits)

    @some(all_settled)
    @rule(data=st.data(), alone=st.booleans(), queue_list=st.sampled_from(QUEUES))
    def lose_reply(self, data: st.DataObject, alone: bool, queue_list: str) -> None:
        """The reply to a claim is lost; what it brought is found in the private lists."""
        worker = self.who(data, all_settled)
        if alone:
            worker.claim_alone_and_lose_the_reply(queue_list, self.stage)
        else:
            worker.claim_and_lose_the_reply(self.stage)

    @some(anybody)
    @rule(data=st.data(), queue_list=st.sampled_from(QUEUES))
    def land(self, data: st.DataObject, queue_list: str) -> None:
        """A blocking read of a process that lives brings a job: one that began under any place."""
        self._land(self.who(data, anybody), queue_list)

    def _land(self, worker: Worker, queue_list: str) -> None:
        if (raw := worker.land(queue_list)) is not None:
            self.truth.move(queue_list, self.bench.keys.landing(worker.owner, queue_list), raw)

    @some(in_doubt)
    @rule(data=st.data())
    def reconcile(self, data: st.DataObject) -> None:
        self.who(data, in_doubt).reconcile()

    @some(anybody)
    @rule(data=st.data(), waits=st.booleans())
    def heartbeat(self, data: st.DataObject, waits: bool) -> None:
        worker = self.who(data, anybody)
        if worker.heartbeat(waits) == "reaped":
            worker.learn()

    @some(anybody)
    @rule(data=st.data(), how=st.sampled_from(["gone", "another type", "of the dead", "too few"]))
    def spoil_the_ranks(self, data: st.DataObject, how: str) -> None:
        """An eviction, or a person, changes the ranks: the places of all workers may be wrong."""
        client, key = self.bench.client, self.bench.keys.ranks
        if how == "of the dead" and client.type(key) != b"string":
            rows = [f"{GROUP}:{kind}:{n:04}" for kind in "aw" for n in (0, 5, 9999)]
            client.zadd(key, dict.fromkeys(rows, 0))
        elif how == "too few" and client.type(key) != b"string":
            client.zrem(key, f"{GROUP}:a:{self.who(data, anybody).owner}")
        else:
            client.delete(key)
            if how == "another type":
                client.set(key, "text")
        self.notable[f"ranks: {how}"] += 1

    @precondition(lambda self: self.all_registered_are_heard())
    @rule()
    def correct_the_ranks(self) -> None:
        """As soon as the key is no other type, heartbeats put the places right: no two workers have
        one rank, no row of another owner is left, and each list is in the share of a worker."""
        if self.bench.client.type(self.bench.keys.ranks) == b"string":
            self.bench.client.delete(self.bench.keys.ranks)
        heard = living(self, looking_alive)
        for _ in range(HEARTBEATS):
            for worker in heard:
                assert worker.heartbeat(waits=True) == "ok"
        assert {worker.rank for worker in heard} == {
            OwnerRank(rank, len(heard), len(heard)) for rank in range(len(heard))
        }
        assert {name for worker in heard for name in worker.blocks_on()} == set(QUEUES)
        self.notable["ranks are right again"] += 1

    def all_registered_are_heard(self) -> bool:
        """Rows behind that of a dead owner are left until a reaper has marked it."""
        heard = {worker.owner for worker in living(self, looking_alive)}
        return bool(heard) and heard == self.truth.owners

    @some(anybody)
    @rule(data=st.data())
    def land_by_place(self, data: st.DataObject) -> None:
        """A blocking read brings a job from a list that is this worker's by its place, be that
        right or not."""
        worker = self.who(data, anybody)
        self._land(worker, data.draw(st.sampled_from(worker.blocks_on())))

    # -- ends

    @some(anybody)
    @rule(data=st.data(), then=st.sampled_from(["", "leaves", "dies"]))
    def stop(self, data: st.DataObject, then: str) -> None:
        worker = self.who(data, anybody)
        worker.heartbeat(state="stopping")
        if then == "dies":
            worker.die()
            self.reap(0)
        elif then and not worker.runs:
            worker.leave()

    @some(harmful)
    @rule(data=st.data(), reaped=st.booleans(), restarts=st.booleans())
    def crash(self, data: st.DataObject, reaped: bool, restarts: bool) -> None:
        """A job ends its process; at once its jobs are taken back, and its supervisor starts it."""
        worker, claimed = self.which(data, harmful)
        if worker.owner not in self.truth.reaped:
            self.truth.culprits[worker.owner] = claimed.job.payload
        worker.die()
        if reaped:
            self.reap(0)
        if restarts:
            self.hire(4, True, worker.slots)

    @precondition(lambda self: self.without_a_suspect())
    @rule(data=st.data(), reaped=st.booleans())
    def power_cut(self, data: st.DataObject, reaped: bool) -> None:
        """It was none of its jobs: one that was alone would be blamed, and no judge knows."""
        data.draw(st.sampled_from(self.without_a_suspect())).die()
        if reaped:
            self.reap(0)

    def without_a_suspect(self) -> list[Worker]:
        return living(self, lambda worker: len(self.truth.running[worker.owner]) != 1)

    @some(looking_alive)
    @rule(data=st.data(), reaped=st.booleans())
    def freeze(self, data: st.DataObject, reaped: bool) -> None:
        """It is taken for dead, and goes on: starts, acks and requeues come late."""
        self.who(data, looking_alive).look_dead()
        if reaped:
            self.reap(0)

    @precondition(lambda self: self.truth.reaped)
    @rule(data=st.data(), queue_list=st.sampled_from(QUEUES))
    def claim_late(self, data: st.DataObject, queue_list: str) -> None:
        """A blocking read of a process that was taken for dead brings a job."""
        owners = sorted(self.truth.reaped)
        owner = owners[data.draw(st.integers(0, len(owners) - 1))]
        landing = self.bench.keys.landing(owner, queue_list)
        raw = self.bench.client.lmove(queue_list, landing, "RIGHT", "LEFT")
        if raw is not None:
            self.truth.move(queue_list, landing, raw)

    # -- reapers

    @rule(which=st.integers(0, 1), rolls_back=st.sampled_from([False] * 7 + [True]))
    def begin(self, which: int, rolls_back: bool) -> None:
        """A reaper, or an operator's rollback, begins a pass."""
        if not self.reapers[which].going:
            self.reapers[which].begin(rolls_back)

    @precondition(lambda self: any(reaper.going for reaper in self.reapers))
    @rule(which=st.integers(0, 1), steps=st.integers(1, 6))
    def go_on(self, which: int, steps: int) -> None:
        self.reapers[which].go_on(steps)

    @rule(which=st.integers(0, 1))
    def reap(self, which: int) -> None:
        """A whole pass, or the rest of one."""
        if not self.reapers[which].going:
            self.reapers[which].begin(False)
        self.reapers[which].end()

    @precondition(lambda self: any(reaper.going for reaper in self.reapers))
    @rule(which=st.integers(0, 1))
    def break_off(self, which: int) -> None:
        self.reapers[which].die()

    @precondition(lambda self: self.registered())
    @rule(data=st.data())
    def drain_the_living(self, data: st.DataObject) -> None:
        """A reaper that drains without its mark moves nothing."""
        reaper = self.bench.reaper(sender=SENDER, limits=self.limits)
        record = data.draw(st.sampled_from(self.registered())).record
        reaper.drain(record, "a mistake", Report())

    def registered(self) -> list[Worker]:
        return living(self, lambda worker: worker.owner in self.truth.owners)

    # -- what must always hold

    @invariant()
    def all_is_as_it_must_be(self) -> None:
        if self.stage.truth is not None:
            self.truth.compare(self.bench.client, QUEUES)

    def teardown(self) -> None:
        if self.stage.truth is not None:
            self.notable.update(self.truth.notable)
            self.stage.truth = None
            for reaper in self.reapers:
                reaper.die()
