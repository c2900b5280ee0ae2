"""What a task sees of its earlier runs, and that nothing of it goes on with what it sends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context

from celery_superfetch.model.job import digest, parse
from celery_superfetch.store.keys import Keys
from support.waiting import eventually

COUNTS = {"recoveries": 2, "strikes": 1, "requeues": 4, "stops": 0}
NONE = dict.fromkeys(COUNTS, 0)


def send(app: Celery, job: str, *args: Any) -> Callable[[], Any]:
    """A job with a header of its producer's; its successors go to `elsewhere`.

    Returns:
        what reads its result, without a subscription that would outlive the test's server.
    """
    follower = app.signature("features.told", queue="elsewhere", immutable=True, args=(job,))
    task = app.signature("features.seen", args=(job, *args), headers={"mine": job})
    task_id = task.apply_async(link=follower).id
    return lambda: app.backend.get_task_meta(task_id)["result"]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_task_sees_that_it_is_a_recovery_and_how_often(pool, worker, make_app, db, client):
    results, keys = {}, Keys()
    client.set(keys.has_history, 1)
    for protocol in (1, 2):
        app = make_app(superfetch=False, conf={"task_protocol": protocol})
        results[protocol, "new"] = send(app, "new")
        for job, more in {"again": {}, "handed on": {"steps": ",a-step"}, "stored": {}}.items():
            results[protocol, job] = send(app, job)
            raw: Any = client.lindex("celery", 0)
            client.hset(keys.history(digest(raw)), mapping={**COUNTS, **more})
        app.backend.store_result(parse(raw).task_id, ValueError(), "FAILURE")
    if pool == "prefork":
        results[2, "crash"] = send(app, "crash", True)
    worker(app="features", pool=pool, concurrency=1)

    counts = {"new": NONE, "crash": {**NONE, "recoveries": 1, "strikes": 1}}
    tokens = []
    for (_, job), result in results.items():
        eventually(lambda result=result: isinstance(result(), list), 30)
        seen, redelivered, headers = result()
        tokens.append(seen.pop("token"))
        assert seen.pop("ended") is (job in ("handed on", "stored"))
        assert seen == counts.get(job, COUNTS)
        assert redelivered is (job != "new")
        assert headers["mine"] == job
    assert tokens == sorted(tokens), "they grow with each claim"
    sent = 3 * len(results)
    eventually(lambda: db.length("elsewhere") == sent, message="a retry, a child and a follower")
    for raw in db.contents("elsewhere"):
        assert b"superfetch" not in raw
        assert "redelivered" not in json.loads(raw)["headers"]
    eventually(lambda: not db.counters())


def test_without_our_request_what_a_task_sees_would_go_on_with_its_retries():
    """The control: to Celery it is a header like any other."""
    options = Context({"id": "1", "task": "t", "superfetch": COUNTS}).as_execution_options()
    assert options["headers"] == {"superfetch": COUNTS}
