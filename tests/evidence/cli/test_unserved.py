"""Jobs that no worker serves are reported, whatever became of the worker that did."""

from __future__ import annotations

import re
from typing import Any

from support.waiting import eventually
from support.workers.bench import payload

QUICK = {"heartbeat_interval": 0.5, "reap_interval": 1}


def test_jobs_behind_a_worker_that_serves_them_no_more_are_reported(
    worker, app, shop, client, cli, ledger
):
    def unserved(queue: str) -> str:
        """The finding of a queue without a consumer; check and status agree on it."""

        def texts(*words: str, code: int = 0) -> list[str]:
            found = cli(*words, "--json", code=code, options=QUICK).json()["findings"]
            return [f["text"] for f in found if f["code"] == "no-consumer"]

        told = texts("status")
        if not told and not client.zcard("superfetch:owners"):
            return ""  # and check is critical for want of a worker
        assert texts("check", code=2 if told else 1) == told
        return "".join(text for text in told if text.startswith(f"queue {queue}: "))

    def push(queue: str, *names: str) -> None:
        client.lpush(queue, *(payload(name, queue=queue) for name in names))

    one: Any = worker(queues=["celery", "aside"], concurrency=1, options=QUICK)
    app.control.cancel_consumer("aside", reply=True, timeout=5)
    push("aside", "a", "b", "c")
    eventually(lambda: "3 jobs" in unserved("aside") and "(1 cancelled)" in unserved("aside"))

    shop.run("busy")
    one.term()
    push("celery", "d", "e")
    eventually(lambda: "2 jobs" in unserved("celery") and "(1 stopping)" in unserved("celery"))

    client.delete("celery", "aside")
    ledger.release()
    assert one.wait_exit() == 0
    eventually(lambda: not unserved("celery") and not unserved("aside"))
    push("aside", "f")
    assert unserved("aside") == "queue aside: 1 job, no worker consumes it"
    # A pass of any worker of the database says since when.
    two = worker(queues=["celery"], concurrency=1, options=QUICK)
    eventually(lambda: re.search(r"1 job, oldest [\d.]+ s, no worker", unserved("aside")))
    two.term()  # its next pass would find the queue again
    assert two.wait_exit() == 0

    said = cli("queue", "forget", "aside").out
    assert "Forgot queue aside." in said
    assert "1 job on it remains" in said
    assert not unserved("aside")
    refused = cli("queue", "forget", "aside", code=1)
    assert "Queue aside is unknown" in refused.err
