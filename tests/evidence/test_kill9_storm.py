"""A storm of kill -9: nothing is lost, and how often a job may run has a ceiling."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from support.servers.ledger import Ledger
from support.waiting import always, eventually
from support.workers.worker import Worker

CONCURRENCY = 2
SEED = 20240229


def storm(
    start: Callable[..., Worker],
    ledger: Ledger,
    jobs: int,
    rounds: int,
    publish: Callable[[], None],
) -> int:
    """Kill one of three workers at `rounds` random points of the work; the number of kills.

    The whole worker and its MainProcess alone in turn; another worker starts for each.
    """
    dice = random.Random(SEED)
    workers = [start(ready=True) for _ in range(3)]
    publish()
    # While the last tenth runs it is all over too soon: the storm is to be in the thick of it.
    moments = sorted(dice.sample(range(1, jobs * 9 // 10), rounds))
    for moment, whole in zip(moments, itertools.cycle((True, False)), strict=False):
        eventually(lambda at=moment: len(ledger.starts()) >= at, 120, message=f"{moment} starts")
        at_work = [one for one in workers if " ready." in one.log()] or workers
        victim = dice.choice(at_work)
        workers.remove(victim)
        if whole:
            victim.kill9_all()
        else:
            victim.kill9_main()
        workers.append(start())
    return rounds


@pytest.mark.timeout(240)
def test_1000_jobs_survive_eight_rounds_of_kill_9(worker, shop, ledger, db):
    names = [f"job-{n}" for n in range(1000)]

    def publish() -> None:
        for name in names:
            shop.hold.delay(name, 0.05)

    def start(ready: bool = False) -> Worker:
        return worker(concurrency=CONCURRENCY, ready=ready)

    kills = storm(start, ledger, len(names), 8, publish)
    eventually(lambda: len(ledger.finishes()) == len(names), 120, message="every job finished")

    starts = ledger.starts()
    assert set(starts) == set(names)
    assert max(map(len, starts.values())) <= kills + 1
    # A kill cuts short what the pool runs, and what has just run and is not settled yet.
    again = sum(len(times) - 1 for times in starts.values())
    assert again <= kills * 2 * CONCURRENCY
    eventually(lambda: not db.private_lists() and not db.length(), message="nothing is left")
    assert not db.dead(), "the guard, with its defaults, kills no job that only was there"
    assert db.stat("recovered") >= kills, "too mild a storm: every kill should cost jobs in flight"


def test_stock_strands_jobs_in_the_same_storm(worker, shop, ledger, db):
    """The control: without the package, the storm of the test above costs jobs."""
    names = [f"job-{n}" for n in range(150)]

    def publish() -> None:
        for name in names:
            # Long enough for a kill to find one at work, however slow the machine is beside.
            shop.hold.delay(name, 0.3)

    def start(ready: bool = False) -> Worker:
        return worker(concurrency=CONCURRENCY, ready=ready, superfetch=False)

    # All kills in its first half: each strands up to ten jobs, and the last might wait for a start
    # that never comes.
    storm(start, ledger, len(names) // 2, 4, publish)
    eventually(lambda: not db.length(), 60, message="the queue is empty")

    def at_rest() -> bool:
        """The workers hold nothing that still runs: all they started has finished or was cut."""
        before = len(ledger.lines())
        always(lambda: len(ledger.lines()) == before, during=2)
        return True

    eventually(at_rest, 60, message="the workers are idle")
    unfinished = set(names) - set(ledger.finishes())
    assert unfinished, "stock lost nothing: the storm is too mild to prove anything"
