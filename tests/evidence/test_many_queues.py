"""More queue lists than blocking reads, and a network that breaks: every job is heard of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.servers.database import Database
from support.servers.faults import kill_connections
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.proxy import FaultProxy
from support.waiting import eventually

QUEUES = [f"q{number}" for number in range(20)]
#: The first and the last steps: the last has no connection that waits on it.
PRIORITIES = (0, 9)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_job_of_any_queue_runs_once_however_connections_break(
    pool, fresh_server, make_app, worker
):
    own = fresh_server(appendonly=True)
    client = own.client()
    with FaultProxy(own.port) as proxy:
        url, books = proxy.url(), own.url(LEDGER_DB)
        app = make_app(url=own.url(), ledger_url=books)
        one = worker(
            url=url, ledger_url=books, pool=pool, concurrency=2, queues=QUEUES, args=["-l", "INFO"]
        )
        ledger, sent = Ledger(books), 0

        def all_run() -> None:
            nonlocal sent
            for queue in QUEUES:
                for priority in PRIORITIES:
                    sent += 1
                    app.tasks["shop.note"].apply_async((str(sent),), queue=queue, priority=priority)
            eventually(lambda: len(ledger.finishes()) == sent, within=60, message="all have run")

        def breaks(how: Callable[[], object]) -> None:
            how()
            all_run()

        all_run()
        breaks(proxy.cut)
        breaks(lambda: kill_connections(client))
        breaks(own.restart)
        assert one.alive()
        assert set(ledger.runs().values()) == {1}, "each ran once"
        db = Database(client)

        def nothing_is_left() -> bool:
            held, waiting = db.held(), {queue: client.llen(queue) for queue in QUEUES}
            assert not held
            assert not sum(waiting.values())
            return True

        eventually(nothing_is_left)
        ledger.close()
