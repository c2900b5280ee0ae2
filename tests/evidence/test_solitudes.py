"""C2. For how long a suspect has its process for itself, and what that costs the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from support.servers.ledger import Ledger
from support.waiting import always, eventually
from support.workers.load import Load

OPTIONS = {"heartbeat_interval": 1, "owner_ttl": 20, "reap_interval": 2}


@pytest.mark.parametrize("without", ["", "ends_of_solitude"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_after_its_minute_others_start_beside_a_long_suspect(
    worker, shop, ledger, db, suspected, pool, without
):
    """It kept them waiting until it ended. The control: they do."""
    suspected(shop.hold, "long", 600.0)
    env = {"HAPPENS": "solitudes", "SOLITUDE": "1", "WITHOUT": without}
    one = worker(pool=pool, concurrency=2, options=OPTIONS, env=env)
    eventually(lambda: ledger.starts().get("long"))
    for number in range(20):
        shop.note.delay(f"short-{number}")
    if without:
        always(lambda: len(ledger.starts()) == 1, during=4, message="they wait")
    else:
        eventually(lambda: len(ledger.finishes()) == 20)
        one.wait_log("other jobs may now start alongside it")
        assert "long" not in ledger.finishes()
        shop.hold.delay("beside", 600.0)
        eventually(lambda: ledger.starts().get("beside"))
        eventually(lambda: sorted(db.running()) == ["beside", "long"])
    ledger.release()
    eventually(lambda: "long" in ledger.finishes() and not db.counters())
    assert ledger.runs()["long"] == 1


@pytest.mark.timeout(240)
@pytest.mark.parametrize("without", ["", "longer_solitudes"])
def test_a_killer_that_takes_longer_than_its_solitude_is_found_in_the_next(
    supervised, app, shop, ledger, db, suspected, without
):
    """And none of those who died with it is killed. The control goes on for ever."""
    suspected(shop.kill_owner, "pill", 3.0)
    env = {"HAPPENS": "solitudes,rests", "SOLITUDE": "1", "RESTS": "60,1", "WITHOUT": without}

    supervisor = supervised(pool="threads", concurrency=4, options=OPTIONS, env=env)

    def is_over() -> bool:
        return bool(db.dead()) or ledger.runs().get("pill", 0) >= 5

    with Load(app, ledger, ["celery"], name="load", every=0.03) as load:
        supervisor.until(is_over, within=200)
        if without:
            assert not db.dead()
            return
        assert [record["task"] for record in db.dead()] == ["shop.kill_owner"]
        [record] = db.dead()
        assert [entry["strike"] for entry in record["history"]] == ["suspect", "exact"]
        supervisor.worker.wait_ready()
        settled = load.settle()
    assert not settled.lost, settled
    assert ledger.runs()["pill"] == 2
    assert set(settled.doubled.values()) <= {2}
    assert len(db.dead()) == 1


@pytest.mark.parametrize("without", ["", "patience"])
def test_where_jobs_wait_for_all_one_owner_at_a_time_is_there_for_suspects(
    worker, shop, ledger, db, client, suspected, without
):
    """Between two jobs each of them ran nothing, and took one. The control: two at once."""
    env = {"HAPPENS": "rests", "RESTS": "60,1", "WITHOUT": without}
    for number in range(2000):
        shop.hold.delay(f"short-{number}", 0.05)
    for _ in range(2):
        # Nothing else is claimed when a job ends: each runs nothing then, however busy the machine.
        args = ["--prefetch-multiplier=1"]
        worker(pool="threads", concurrency=1, options=OPTIONS, env=env, args=args)
    eventually(lambda: len({line["pid"] for line in ledger.lines("started")}) == 2)
    names = [f"suspect-{number}" for number in range(6)]
    for name in names:
        suspected(shop.hold, name, 0.5)
    eventually(lambda: set(names) <= set(ledger.finishes()), within=60)
    assert db.length() > 100, "both had enough to do"
    client.delete("celery")
    assert overlaps(ledger, names) == bool(without)
    if not without:
        begun = [ledger.starts()[name][0] for name in names]
        shorts = [at for job, [at] in ledger.starts().items() if job.startswith("short")]
        while_they_ran = [at for at in shorts if min(begun) < at < max(begun)]
        assert len(while_they_ran) > 2 * len(names), "the others went on"


def overlaps(ledger: Ledger, names: Sequence[str]) -> bool:
    """Whether two of some jobs ran at the same time."""
    starts, ends = ledger.starts(), ledger.finishes()
    runs = sorted((starts[name][0], ends[name][0]) for name in names)
    return any(later[0] < earlier[1] for earlier, later in pairwise(runs))
