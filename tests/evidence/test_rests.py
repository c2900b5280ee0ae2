"""C2. Who comes to rest for a suspect: one owner of the database, and not for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from support.servers.database import OWN
from support.servers.ledger import Ledger
from support.waiting import always, eventually
from support.workers.load import Load
from support.workers.worker import Worker

OPTIONS = {"heartbeat_interval": 1, "owner_ttl": 20, "reap_interval": 2}


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


def put_suspects(suspected: Callable[..., None], shop: SimpleNamespace) -> None:
    """One in each of two queues."""
    for queue in ("celery", "mail"):
        suspected(shop.hold, f"suspect-{queue}", 0.2, queue=queue)


def begun(ledger: Ledger) -> Counter[int]:
    """Pid of a worker -> how many short jobs it has begun."""
    return Counter(line["pid"] for line in ledger.lines("started") if "short" in line["job"])


def begin_more(ledger: Ledger, workers: Sequence[Worker]) -> None:
    """Each of some workers begins five more short jobs, and soon."""
    before = begun(ledger)

    def more() -> bool:
        now = begun(ledger)
        return all(now[one.pid] >= before[one.pid] + 5 for one in workers)

    eventually(more, within=20, message=f"{[one.name for one in workers]} begin more")


def test_one_owner_of_the_database_comes_to_rest_and_the_others_go_on(
    fleet, app, shop, ledger, db, suspected
):
    """C2: with all workers busy, one after the other stopped; at once one for each queue list."""
    workers = fleet(3, env={"HAPPENS": "rests", "RESTS": "600,10"})  # whatever this takes
    with Load(app, ledger, ["celery", "mail"], name="short", every=0.02) as load:
        begin_more(ledger, workers)
        put_suspects(suspected, shop)
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


@pytest.mark.parametrize("without", ["", "quiesces_in_vain"])
def test_a_suspect_runs_alongside_a_job_that_does_not_end(
    fleet, app, shop, ledger, db, suspected, without
):
    """C2: its owner rested until its jobs had ended, which may take a day; then it did not, and the
    suspect waited for ever, as in the control. Others wait for it once."""
    [one] = fleet(1, env={"HAPPENS": "rests", "RESTS": "1,4", "WITHOUT": without})
    suspects = {"suspect-celery", "suspect-mail"}
    with Load(app, ledger, ["celery", "mail"], name="short", every=0.05) as load:
        put_suspects(suspected, shop)
        first = eventually(db.rest)
        begin_more(ledger, [one])
        if without:
            begin_more(ledger, [one])
            always(lambda: "suspect" not in str(ledger.starts()), during=2, message="they wait")
        else:
            eventually(lambda: suspects <= set(ledger.finishes()), within=60)
            assert "long-0" not in ledger.finishes()
            begin_more(ledger, [one])
        assert db.rest()["since"] == first["since"], "nobody quiesces for them again"
        assert int(first["until"]) - int(first["since"]) == 1000
        load.stop()
        ledger.release("long-0")
        eventually(lambda: suspects <= set(ledger.finishes()), within=60)
        assert load.settle().clean
    assert max(map(len, ledger.starts().values())) == 1
    eventually(lambda: not db.counters(), message="settled, they are innocent")


def test_nobody_rests_for_an_empty_list(fleet, app, ledger, db, client):
    """C2: what a purge, or an expired queue, left in the set made owners rest."""
    [one] = fleet(1)
    with Load(app, ledger, ["celery", "mail"], name="short", every=0.05):
        client.sadd(f"{OWN}probation", "celery")
        eventually(lambda: not client.exists(f"{OWN}probation"), message="the worker saw it")
        begin_more(ledger, [one])
    assert not db.rest()
    ledger.release()


def test_where_everybody_rests_one_suspect_stops_the_fleet(fleet, app, shop, ledger, db, suspected):
    """C2, the control: what a fleet does whose owners rest as they like."""
    workers = fleet(2, env={"WITHOUT": "rests"})
    with Load(app, ledger, ["celery", "mail"], name="short", every=0.02) as load:
        begin_more(ledger, workers)
        put_suspects(suspected, shop)
        eventually(lambda: db.length("celery") + db.length("mail") > 100, message="nobody claims")
        assert "suspect" not in str(ledger.starts())
        load.stop()
    ledger.release()
    eventually(lambda: {"suspect-celery", "suspect-mail"} <= set(ledger.finishes()), within=60)
