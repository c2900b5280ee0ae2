"""What receivers of Celery's signals and monitors of its events hear of this package."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from support.waiting import eventually

REAP = "celery_superfetch.reap"
SIGNALS = ["task_prerun", "task_postrun", "task_success"]
CONTROL = 2  # the database of the worker that goes without the safety


def listen(app: Any) -> list[tuple[str, str]]:
    """Kinds of the events of an app's tasks, each with the task's id, as they come."""
    heard: list[tuple[str, str]] = []

    def run() -> None:
        def note(event: dict[str, Any]) -> None:
            if event["type"].startswith("task-"):
                heard.append((event["type"], event["uuid"]))

        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, {"*": note})
            try:
                receiver.capture(limit=None, timeout=60, wakeup=False)
            except Exception:  # the test is over, and its server away
                return

    threading.Thread(target=run, daemon=True).start()
    return heard


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_pass_sends_no_task_signal(worker, shop, ledger, db, server, make_app, pool):
    """Receivers that open a connection, count or trace ran every ten seconds for each app."""
    beside = server.url(CONTROL)
    server.client(CONTROL).flushdb()
    common = {"app": "heard", "pool": pool, "concurrency": 1, "loglevel": "DEBUG", "ready": False}
    one = worker(queues=["quiet"], **common)
    control = worker(queues=["loud"], url=beside, env={"WITHOUT": "quiet_traces"}, **common)
    for made in (one, control):
        made.wait_ready()
    for queue, url in (("loud", beside), ("quiet", None)):
        app = make_app(superfetch=False, **({"url": url} if url else {}))
        for _ in range(3):
            app.send_task(REAP, queue=queue)
        app.tasks["shop.note"].apply_async((queue,), queue=queue)
        if queue == "loud":
            eventually(lambda: len(ledger.told("task_postrun")) == 4, message="the control")
            assert {*ledger.told("task_prerun")} == {REAP, "shop.note"}
            ledger.clear()
    eventually(lambda: ledger.told("task_postrun"))
    eventually(lambda: one.log().count(f"Task {REAP}[") >= 6, message="received, and succeeded")
    assert {name: ledger.told(name) for name in SIGNALS} == {
        name: ["shop.note"] for name in SIGNALS
    }
    assert "another process made the pass of this interval" in one.log() or "reap: " in one.log()
    eventually(lambda: not db.private_lists())


def test_monitors_hear_that_a_job_lost_its_process(worker, ledger, db, server, make_app):
    """Stock's `task-rejected`: between two `task-received` there was nothing."""
    stock_url = server.url(CONTROL)
    server.client(CONTROL).flushdb()
    common = {"concurrency": 1, "args": ["-E"], "ready": False}
    ours = worker(queues=["ours"], **common)
    stock = worker(queues=["stock"], superfetch=False, url=stock_url, **common)
    apps = {
        "ours": make_app(superfetch=False),
        "stock": make_app(superfetch=False, url=stock_url),
    }
    heard = {name: listen(app) for name, app in apps.items()}
    ours.wait_ready()
    stock.wait_ready()
    ids = {}
    for name, app in apps.items():
        ids[name] = app.tasks["shop.hold"].apply_async((name,), queue=name).id
    eventually(lambda: {*ledger.starts()} == {*apps})
    for one in (ours, stock):
        one.kill9_child()
    eventually(lambda: ledger.runs() == dict.fromkeys(apps, 2))
    ledger.release()
    eventually(lambda: {*ledger.finishes()} == {*apps})

    def of(name: str) -> list[str]:
        kinds = [kind for kind, id in heard[name] if id == ids[name]]
        return [kind for kind in kinds if kind != "task-started"]

    once = ["task-received", "task-rejected", "task-received", "task-succeeded"]
    eventually(lambda: of("stock") == once, message="as stock has it")
    eventually(lambda: of("ours") == once)
    assert ledger.runs() == dict.fromkeys(apps, 2)
