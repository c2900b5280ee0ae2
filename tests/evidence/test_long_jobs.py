"""Jobs that run for too long are told of."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_superfetch.console import findings_of_jobs, overview
from support.waiting import eventually

QUICK = {"heartbeat_interval": 1, "owner_ttl": 30, "reap_interval": 1}


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_job_that_runs_too_long_is_told_of_and_never_touched(
    worker, shop, ledger, cli, monkeypatch, pool
):
    for module in (overview, findings_of_jobs):
        monkeypatch.setattr(module, "LONG_RUN_S", 2)
    one = worker(pool=pool, options=QUICK, concurrency=1)
    runs = shop.hold.delay("runs")
    eventually(lambda: ledger.starts().get("runs"))

    def found() -> Any:
        findings = cli("check", "--json", code=1).json()["findings"]
        return [one for one in findings if one["code"] == "long-running-job"]

    [told] = eventually(found, every=0.2)
    assert told["level"] == "warning"
    assert told["text"].startswith(f"1 job of shop.hold has run for more than 2 s, {runs.id}")
    assert f"control terminate SIGTERM {runs.id}`" in told["fix"]
    [job] = cli("jobs", "--json").json()["jobs"]
    assert (job["state"], job["long_run"] >= 2) == ("running", True)
    assert "long-running, " in cli("jobs").out
    status = cli("status").out
    assert status.startswith("Warning: 1 job of shop.hold has run for more")
    assert re.search(r" 1 of \d+(, full)?, 1 long", status), status
    assert 'superfetch_long_running_jobs{task="shop.hold"} 1.0' in cli("metrics", "--once").out
    ledger.release()
    eventually(lambda: ledger.finishes().get("runs"))
    assert ledger.runs() == {"runs": 1}
    eventually(lambda: not cli("status", "--json").json()["owners"][0]["long_runs"], every=0.2)
    assert one.alive()
