"""One poison pill among innocents: suspects run alone, and nobody dies for another."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from celery_superfetch.model.job import digest
from support.servers.database import OWN, Database
from support.servers.ledger import Ledger
from support.waiting import always, eventually
from support.workers.load import Load
from support.workers.worker import Worker

STRIKES = 3
INNOCENTS = [f"innocent-{n}" for n in range(16)]
OPTIONS = {"heartbeat_interval": 1, "owner_ttl": 20, "reap_interval": 2}


class Supervisor:
    """Starts the worker again whenever it ends, as systemd or Kubernetes does."""

    def __init__(self, start: Callable[[], Worker]) -> None:
        self.start = start
        self.worker = start()
        self.restarts = 0
        #: Seconds from each start to "ready", the price of the restarts themselves.
        self.starting = 0.0

    def tend(self) -> None:
        if not self.worker.alive():
            began = time.monotonic()
            self.worker = self.start().wait_ready()
            self.starting += time.monotonic() - began
            self.restarts += 1


@pytest.fixture
def supervised(worker: Any) -> Callable[..., Supervisor]:
    """`supervised(pool="threads", concurrency=8)`"""

    def start(**settings: Any) -> Supervisor:
        return Supervisor(lambda: worker(ready=False, options=OPTIONS, **settings))

    return start


def until(supervisor: Supervisor, done: Callable[[], Any]) -> None:
    def look() -> bool:
        supervisor.tend()
        return bool(done())

    eventually(look, within=120)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_one_job_that_takes_the_worker_down_among_innocents(
    supervised: Callable[..., Supervisor],
    shop: SimpleNamespace,
    ledger: Ledger,
    db: Database,
    pool: str,
) -> None:
    for name in INNOCENTS[:8]:
        shop.hold.delay(name, 1.0)
    shop.kill_owner.delay("pill")
    for name in INNOCENTS[8:]:
        shop.hold.delay(name, 1.0)
    began = time.monotonic()
    supervisor = supervised(pool=pool, concurrency=8)
    until(supervisor, lambda: set(ledger.finishes()) == set(INNOCENTS) and db.dead())
    took = time.monotonic() - began
    runs = ledger.runs()
    print(
        f"{pool}: {took:.1f} s in all, {supervisor.restarts} restarts took "
        f"{supervisor.starting:.1f} s of them, runs: {runs}"
    )
    assert [record["task"] for record in db.dead()] == ["shop.kill_owner"], "and nobody else"
    assert 1 <= ledger.runs()["pill"] <= STRIKES
    eventually(lambda: not db.private_lists() and not db.on_probation() and not db.waiting())
    assert not db.counters()


@pytest.mark.slow
def test_whoever_blames_all_that_ran_kills_innocents(
    supervised: Callable[..., Supervisor], shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    """The control, and what Sidekiq Pro does."""
    for name in INNOCENTS[:7]:
        shop.hold.delay(name)
    shop.kill_owner.delay("pill")
    supervisor = supervised(pool="threads", concurrency=8, env={"WITHOUT": "probation"})
    until(supervisor, lambda: len(db.dead()) == 8)
    assert not ledger.finishes()


def suspect(db: Database, client: redis.Redis, job: str) -> None:
    """Put a job that waits on probation, as two crashes would."""
    assert db.waiting() == [job]
    raw: Any = client.lmove("celery", f"{OWN}probation:celery", "RIGHT", "LEFT")
    client.hset(
        f"{OWN}recoveries:{digest(raw)}", mapping={"strikes": 2, "recoveries": 2, "probation": 1}
    )
    client.set(f"{OWN}recovered", 1)
    client.sadd(f"{OWN}probation", "celery")


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_suspect_gets_its_turn_under_load_and_runs_with_nothing_beside(
    worker: Any,
    app: Any,
    shop: SimpleNamespace,
    ledger: Ledger,
    db: Database,
    client: redis.Redis,
    pool: str,
) -> None:
    shop.hold.delay("suspect", 1.0)
    suspect(db, client, "suspect")
    shop.hold.delay("long", 3.0)
    one = worker(pool=pool, concurrency=1 if pool == "solo" else 4, options=OPTIONS, ready=False)
    with ExitStack() as stack:
        load = stack.enter_context(Load(app, ledger, ["celery"], name="load", every=0.03))
        one.wait_ready()
        eventually(lambda: ledger.finishes().get("suspect"), within=60, message="its turn comes")
        load.wait_progress(5)
        settled = load.settle()
    assert settled.clean, settled
    [began], [ended] = ledger.starts()["suspect"], ledger.finishes()["suspect"]
    beside = [
        job
        for job, starts in ledger.starts().items()
        for start, end in zip(starts, ledger.finishes()[job], strict=True)
        if job != "suspect" and start < ended and end > began
    ]
    assert not beside
    eventually(lambda: not db.counters(), message="settled, it is innocent")


def test_a_suspect_whose_worker_is_deployed_goes_on_with_the_next(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, client: redis.Redis
) -> None:
    shop.hold.delay("suspect")
    suspect(db, client, "suspect")
    one = worker(concurrency=2, options=OPTIONS)
    eventually(lambda: ledger.starts().get("suspect"))
    shop.note.delay("other")
    always(lambda: "other" not in ledger.starts(), during=2, message="it waits")
    one.term()
    eventually(lambda: db.fact(db.owner_of("suspect"), "state") == "stopping")
    one.kill9_all()
    worker(concurrency=2, options=OPTIONS)
    eventually(lambda: ledger.runs()["suspect"] == 2)
    assert not ledger.starts().get("other") or not db.dead()
    ledger.release()
    eventually(lambda: {"suspect", "other"} <= set(ledger.finishes()))
    eventually(lambda: not db.counters())
    assert not db.dead()


def test_another_worker_goes_on_with_the_rest(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, client: redis.Redis
) -> None:
    shop.hold.delay("suspect")
    suspect(db, client, "suspect")
    worker(concurrency=2, options=OPTIONS)
    eventually(lambda: ledger.starts().get("suspect"))
    worker(concurrency=2, options=OPTIONS)
    for n in range(20):
        shop.note.delay(f"job-{n}")
    eventually(lambda: len(ledger.finishes()) == 20)
    pids = {line["pid"] for line in ledger.lines("started") if line["job"] != "suspect"}
    [alone] = [line["pid"] for line in ledger.lines("started") if line["job"] == "suspect"]
    assert alone not in pids
    ledger.release()
    eventually(lambda: ledger.finishes().get("suspect"))


# -- who comes to rest for a suspect: C2


@pytest.fixture
def fleet(worker: Any, shop: SimpleNamespace, ledger: Ledger) -> Callable[..., list[Worker]]:
    """`fleet(3)`: workers of two threads, each of which has a long job, `long-<n>`."""

    def start(count: int, **settings: Any) -> list[Worker]:
        started = []
        for number in range(count):
            shop.hold.apply_async((f"long-{number}", 600.0), queue=f"own-{number}")
            started.append(
                worker(
                    **{
                        "pool": "threads",
                        "concurrency": 2,
                        "queues": ["celery", "mail", f"own-{number}"],
                        "options": OPTIONS,
                        # What is prefetched has to end as well before an owner rests.
                        "conf": {"worker_prefetch_multiplier": 1},
                        **settings,
                    }
                )
            )
            eventually(lambda n=number: ledger.starts().get(f"long-{n}"))
        return started

    return start


def put_suspects(db: Database, client: redis.Redis, shop: SimpleNamespace) -> None:
    """One in each of two queues that nobody looks at meanwhile."""
    for queue in ("celery", "mail"):
        shop.hold.apply_async((f"suspect-{queue}", 0.2), queue="aside")
        raw: Any = client.rpop("aside")
        counters = {"strikes": 2, "recoveries": 2, "probation": 1}
        client.hset(f"{OWN}recoveries:{digest(raw)}", mapping=counters)
        client.set(f"{OWN}recovered", 1)
        client.lpush(f"{OWN}probation:{queue}", raw)
        client.sadd(f"{OWN}probation", queue)


def begun(ledger: Ledger) -> Counter[int]:
    """Pid of a worker -> how many short jobs it has begun."""
    return Counter(line["pid"] for line in ledger.lines("started") if "short" in line["job"])


def begin_more(ledger: Ledger, workers: Sequence[Worker], jobs: int = 5) -> bool:
    """Whether each of some workers begins more short jobs, and soon."""
    before = begun(ledger)

    def more() -> bool:
        now = begun(ledger)
        return all(now[one.pid] >= before[one.pid] + jobs for one in workers)

    eventually(more, within=20, message=f"{[one.name for one in workers]} begin {jobs} more")
    return True


@pytest.mark.slow
def test_one_owner_of_the_database_comes_to_rest_and_the_others_go_on(
    fleet: Any, app: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, client: redis.Redis
) -> None:
    """C2: with all workers busy, one after the other stopped; at once one for each queue list."""
    workers = fleet(3, app="rests", env={"RESTS": "600,10"})  # whatever this takes
    with Load(app, ledger, ["celery", "mail"], name="short", every=0.02) as load:
        begin_more(ledger, workers)
        put_suspects(db, client, shop)
        owner = eventually(lambda: db.rest().get("owner"))
        [rests] = [one for one in workers if f"|{one.pid}|" in owner]
        others = [one for one in workers if one is not rests]
        eventually(lambda: db.held()[owner] == [f"long-{workers.index(rests)}"])
        before = begun(ledger)[rests.pid]
        for _ in range(4):
            begin_more(ledger, others)
            assert db.rest()["owner"] == owner
        assert begun(ledger)[rests.pid] == before, "it claims nothing"
        assert not [line for line in ledger.starts() if line.startswith("suspect")]
        ledger.release(f"long-{workers.index(rests)}")
        eventually(lambda: [job for job in ledger.finishes() if job.startswith("suspect")])
        begin_more(ledger, workers)
        load.stop()
        ledger.release()
        eventually(lambda: {"suspect-celery", "suspect-mail"} <= set(ledger.finishes()), within=60)
        assert load.settle().clean
    assert max(map(len, ledger.starts().values())) == 1


@pytest.mark.slow
def test_an_owner_whose_jobs_do_not_end_in_time_goes_back_to_work(
    fleet: Any, app: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, client: redis.Redis
) -> None:
    """C2: it rested until its jobs had ended, which may take a day."""
    [one] = fleet(1, app="rests", env={"RESTS": "1,4"})
    with Load(app, ledger, ["celery", "mail"], name="short", every=0.05) as load:
        put_suspects(db, client, shop)
        first = eventually(db.rest)
        begin_more(ledger, [one])
        assert "suspect" not in str(ledger.starts())
        assert db.rest()["since"] == first["since"], "it works for some time before it rests again"
        second = eventually(lambda: db.rest()["since"] != first["since"] and db.rest())
        begin_more(ledger, [one])
        lasted = [int(rest["until"]) - int(rest["since"]) for rest in (first, second)]
        assert lasted == [1000, 2000]
        assert int(second["since"]) >= int(first["until"]) + 4 * lasted[0]
        load.stop()
        ledger.release("long-0")
        eventually(lambda: {"suspect-celery", "suspect-mail"} <= set(ledger.finishes()), within=60)
        assert load.settle().clean


@pytest.mark.slow
def test_nobody_rests_for_an_empty_list(
    fleet: Any, app: Any, ledger: Ledger, db: Database, client: redis.Redis
) -> None:
    """C2: what a purge, or an expired queue, left in the set made owners rest."""
    [one] = fleet(1)
    with Load(app, ledger, ["celery", "mail"], name="short", every=0.05):
        client.sadd(f"{OWN}probation", "celery")
        eventually(lambda: not client.exists(f"{OWN}probation"), message="the worker saw it")
        begin_more(ledger, [one])
    assert not db.rest()
    ledger.release()


@pytest.mark.slow
def test_where_everybody_rests_one_suspect_stops_the_fleet(
    fleet: Any, app: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, client: redis.Redis
) -> None:
    """C2, the control: what a fleet does whose owners rest as they like."""
    workers = fleet(2, env={"WITHOUT": "rests"})
    with Load(app, ledger, ["celery", "mail"], name="short", every=0.02) as load:
        begin_more(ledger, workers)
        put_suspects(db, client, shop)
        eventually(lambda: db.length("celery") + db.length("mail") > 100, message="nobody claims")
        assert "suspect" not in str(ledger.starts())
        load.stop()
    ledger.release()
    eventually(lambda: {"suspect-celery", "suspect-mail"} <= set(ledger.finishes()), within=60)
