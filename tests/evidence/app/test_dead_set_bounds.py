"""However many jobs are dead, no command of ours reads or moves more than a batch of them."""

from __future__ import annotations

import pytest
import redis

from celery_superfetch import DeadSet
from celery_superfetch.app import dead_set as app_dead_set
from celery_superfetch.model.dead_job import DeadFilter
from celery_superfetch.store import dead_set as structure
from celery_superfetch.store.dead_set import DEAD_BATCH, IDS_PER_COMMAND
from support.servers.work import WITHOUT_END, Work, noted
from support.workers.bench import Bench, payload, trimmed

JOBS = 6 * DEAD_BATCH + 50

#: Commands for one job between two scripts' ends, at most.
FOR_ONE = 6


@pytest.fixture
def bench(own: redis.Redis) -> Bench:
    """More dead jobs than one batch, and than one read of ids."""
    bench = Bench(own)
    bench.give("elsewhere|1|nonce", "mail", [payload(f"id-{n}") for n in range(JOBS)])
    for _ in range(JOBS):
        job = bench.held("elsewhere|1|nonce")[0]
        bench.run(bench.dead_set.kill_call(bench.recovery(job), marked=False, notice=b""))
    assert len(bench.dead_set) == JOBS
    return bench


def answers(asked: list[bytes]) -> float:
    """How many members a ZRANGE may answer with."""
    if b"LIMIT" in asked:
        return int(asked[asked.index(b"LIMIT") + 2])
    first, last = int(asked[1]), int(asked[2])
    # Ranks of one end tell how many they are; those of both do not.
    return last - first + 1 if (first < 0) == (last < 0) else float("inf")


def check(work: Work) -> None:
    """Fails where one command or script could do more than a batch."""
    assert work.commands
    since_script = 0
    for command in work.commands:
        asked = command.arguments
        assert command.name not in WITHOUT_END
        assert command.number <= DEAD_BATCH + 20, f"{command.name}: {command.number} arguments"
        if command.name in ("zrange", "zrangebyscore"):
            assert answers(asked) <= DEAD_BATCH
        if command.name == "zscan":
            assert asked[-1] == str(IDS_PER_COMMAND).encode()
        if command.name == "srandmember":
            assert int(asked[-1]) <= DEAD_BATCH
        if command.name in ("eval", "evalsha"):
            since_script = 0
        else:
            since_script += 1
            assert since_script <= DEAD_BATCH * FOR_ONE, (
                "a script that goes through more than a batch"
            )


def everything(bench: Bench, dead: DeadSet) -> None:
    """All that is done with a dead set, on more jobs than one batch."""
    assert len(dead.page(count=3 * DEAD_BATCH)) == 3 * DEAD_BATCH
    shown = dead.page(count=50)
    assert len(dead.page(count=50, task="shop.note", older_than=0)) == 50
    dead.get(shown[0].id)
    dead.get(shown[0].id[:12])
    dead.get(shown[0].task_id or "")
    dead.retry(shown[0])
    assert len(dead.retry_many([job.id for job in dead.find(task="*")][:DEAD_BATCH])) == DEAD_BATCH
    assert len(dead.retry_all(reason="gone", newer_than=0.001)) == 0
    assert dead.delete(*(job.id for job in dead.page(count=DEAD_BATCH))) == DEAD_BATCH
    assert bench.client.scard(bench.keys.unannounced) > DEAD_BATCH / 2
    assert sum(trimmed(Bench(bench.client, dead_limit=50).dead_set)) == DEAD_BATCH
    assert dead.purge() > DEAD_BATCH


def test_no_command_does_more_than_a_batch(bench, own, make_app):
    with DeadSet(make_app(result_url=""), own) as dead, noted(own) as work:
        everything(bench, dead)
    check(work)
    assert len([c for c in work.commands if c.name == "evalsha"]) > JOBS / DEAD_BATCH


@pytest.mark.parametrize("unbounded", ["batch", "all at once"])
def test_control_the_look_at_the_work_has_teeth(bench, own, make_app, monkeypatch, unbounded):
    if unbounded == "batch":
        for module in (structure, app_dead_set):
            monkeypatch.setattr(module, "DEAD_BATCH", 100_000)
    with DeadSet(make_app(result_url=""), own) as dead, noted(own) as work:
        if unbounded == "batch":
            list(dead.find(**vars(DeadFilter(task="x"))))
        else:
            own.zrange(bench.keys.dead, 0, -1)
    with pytest.raises(AssertionError):
        check(work)
