"""A service that forbids CLIENT UNBLOCK: a solo worker that runs a job cannot call off the read by
which it waits for another."""

from __future__ import annotations

from support.servers.commands import blocked
from support.servers.database import Database
from support.waiting import always, eventually

CONTROL = 2  # the database of the worker that keeps its reads
#: The worker waits by its one read on the first queue, and hears of the other.
QUEUES = ["first", "second"]


def test_a_solo_worker_without_unblock_leaves_jobs_to_others(
    fresh_server, worker, make_app, ledger
):
    """A job that comes while it runs another stays on its queue, where the next worker finds it."""
    server = fresh_server()
    server.client().execute_command("ACL", "SETUSER", "default", "-client|unblock")
    dbs = {0: "", CONTROL: "abandoned_reads"}
    workers = {
        db: worker(
            url=server.url(db),
            result_url=server.url(1),
            pool="solo",
            queues=QUEUES,
            env={"WITHOUT": without},
            ready=False,
        )
        for db, without in dbs.items()
    }
    for one in workers.values():
        one.wait_ready()
    tasks = {db: make_app(superfetch=False, url=server.url(db)).tasks for db in dbs}
    look = {db: Database(server.client(db)) for db in dbs}
    eventually(lambda: blocked(server.client()) == len(dbs), message="each waits by a read")
    for db in dbs:
        tasks[db]["shop.hold"].apply_async((f"long-{db}", 600), queue="second")
    eventually(lambda: {f"long-{db}" for db in dbs} == set(ledger.starts()))
    for db in dbs:
        tasks[db]["shop.note"].apply_async((f"short-{db}",), queue="first")
    eventually(lambda: not look[CONTROL].length("first"), message="it lands at the busy worker,")
    always(lambda: f"short-{CONTROL}" not in ledger.starts(), 1, message="which does not see it")
    eventually(lambda: look[0].length("first") == 1)
    other = worker(url=server.url(0), result_url=server.url(1), pool="threads", queues=QUEUES)
    eventually(lambda: "short-0" in ledger.finishes(), message="another runs it meanwhile")
    assert "long-0" not in ledger.finishes()
    ledger.release()
    eventually(lambda: len(ledger.finishes()) == 4)
    assert set(ledger.runs().values()) == {1}
    for one in (*workers.values(), other):
        assert "Traceback" not in one.log()
