"""Jobs that run for too long are told of; what waits behind them goes to who has time for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import always, eventually

QUICK = {"heartbeat_interval": 1, "owner_ttl": 30, "reap_interval": 1}


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_job_that_runs_too_long_is_told_of_and_never_touched(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, cli: Any, pool: str
) -> None:
    one = worker(pool=pool, options={**QUICK, "stuck_after": 1}, concurrency=1)
    runs = shop.hold.delay("runs")
    eventually(lambda: ledger.starts().get("runs"))

    def found() -> Any:
        findings = cli("check", "--json", code=1).json()["findings"]
        return [one for one in findings if one["code"] == "stuck-job"]

    [told] = eventually(found, every=0.2)
    assert told["level"] == "warning"
    assert told["text"].startswith(
        f"1 job of shop.hold runs for longer than stuck_after, {runs.id}"
    )
    assert f"jobs kill --terminate {runs.id}" in told["fix"]
    [job] = cli("jobs", "--json").json()["jobs"]
    assert (job["state"], job["stuck"] >= 1) == ("running", True)
    assert "runs " in cli("jobs").out
    status = cli("status").out
    assert status.startswith("Warning: 1 job of shop.hold runs for longer")
    assert "1, 1 stuck" in status
    assert 'superfetch_stuck_jobs{task="shop.hold"} 1.0' in cli("metrics", "--once").out
    ledger.release()
    eventually(lambda: ledger.finishes().get("runs"))
    assert ledger.runs() == {"runs": 1}
    eventually(lambda: not cli("status", "--json").json()["owners"][0]["stuck"], every=0.2)
    assert one.alive()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_what_waits_behind_a_long_job_goes_to_an_idle_worker(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, cli: Any, pool: str
) -> None:
    hoarder(worker, shop, ledger, db, pool=pool, reserved_timeout=2)
    worker(options=QUICK, concurrency=1)
    eventually(lambda: {"first", "second"} <= set(ledger.finishes()))
    assert not ledger.finishes().get("runs")
    assert "superfetch_relieved_total 2.0" in cli("metrics", "--once").out
    ledger.release()
    eventually(lambda: not db.held())
    assert ledger.runs() == {"runs": 1, "first": 1, "second": 1}


def test_the_control_without_the_option_it_waits_while_another_idles(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    hoarder(worker, shop, ledger, db, pool="prefork")
    worker(options=QUICK, concurrency=1)
    shop.note.delay("later")
    eventually(lambda: ledger.finishes().get("later"), message="the other has nothing to do")
    always(lambda: "first" not in ledger.starts(), 5.0)


def test_nothing_goes_back_where_nobody_of_its_queue_is_idle(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, client: Any
) -> None:
    worker(options=QUICK, concurrency=1, conf={"worker_prefetch_multiplier": 1})
    shop.hold.delay("elsewhere")
    eventually(lambda: ledger.starts().get("elsewhere"))
    hoarder(worker, shop, ledger, db, pool="prefork", reserved_timeout=1)
    worker(options=QUICK, concurrency=1, queues=["mail"])
    always(lambda: not client.hexists("superfetch:stats", "requeued"), 5.0)
    assert set(ledger.starts()) == {"elsewhere", "runs"}


def hoarder(
    worker: Any,
    shop: SimpleNamespace,
    ledger: Ledger,
    db: Database,
    *,
    pool: str,
    **options: Any,
) -> None:
    """A worker that runs a long job, and has reserved two short ones."""
    shop.hold.delay("runs")
    shop.note.delay("first")
    shop.note.delay("second")
    prefetch = {"worker_prefetch_multiplier": 3}
    worker(pool=pool, options={**QUICK, **options}, concurrency=1, conf=prefetch)
    eventually(lambda: ledger.starts().get("runs"))
    eventually(lambda: ["runs", "first", "second"] in db.held().values())
