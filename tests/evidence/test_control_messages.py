"""Control messages that fail: Celery closes the channel of its remote control, and opens another.
The worker claims and acks on, and reads control messages on the new one."""

from __future__ import annotations

import pytest

from support.waiting import eventually

#: Celery's handler of one command fails where only that command is concerned. These fail outside of
#: it: the first as the message is matched, in every worker; the second as the reply is sent.
FAILING = {
    "pattern": ("ping", {"pattern": "*x", "matcher": "pcre"}),
    "reply": ("unwritable", {"reply": True, "timeout": 0.1}),
}


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
@pytest.mark.parametrize("kind", FAILING)
def test_a_worker_outlives_them_and_no_job_runs_twice(worker, app, shop, ledger, db, pool, kind):
    one = worker(app="controlled", pool=pool)
    [owner] = db.owners()
    command, how = FAILING[kind]
    for number in range(1, 4):
        shop.hold.delay(f"held {number}", 1)
        eventually(lambda: f"held {number}" in ledger.starts())  # noqa: B023
        app.control.broadcast(command, **how)
        eventually(lambda: one.log().count("Control command error") >= number)  # noqa: B023
        shop.note.delay(f"after {number}")
        eventually(lambda: f"after {number}" in ledger.finishes(), 15)  # noqa: B023
        eventually(lambda: f"held {number}" in ledger.finishes(), 15)  # noqa: B023
    eventually(db.settled, message="every ack reaches the server")
    assert app.control.ping(timeout=2), "the other channel for remote control is read"
    assert set(ledger.runs().values()) == {1}
    assert db.owners() == [owner], "the worker was not declared dead"
