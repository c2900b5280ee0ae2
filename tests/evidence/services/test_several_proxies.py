"""Several proxies behind one run id, each with connection ids of its own (Redis Enterprise)."""

from __future__ import annotations

import redis

from support.servers.database import Database
from support.servers.managed import Manners
from support.waiting import eventually

QUICK = {"heartbeat_interval": 1, "owner_ttl": 5, "reap_interval": 1}
JOBS = [f"n{n}" for n in range(200)]
STRANGERS = 15
#: Each of a worker's reads may be asked for in vain some times before it is closed instead.
IN_VAIN = 40


def test_ids_of_another_proxy_cut_no_stranger_and_hold_up_no_job(worker, make_app, ledger, managed):
    """CLIENT KILL cut five strangers, and each delivery waited a second for its UNBLOCK."""
    own, service = managed(Manners(own_ids=True, proxies=3, databases=False, redirect=False))
    db = Database(own.client())
    where = {"url": service.url(), "result_url": own.url(), "options": QUICK}
    strangers = [
        redis.Redis(port=service.port, single_connection_client=True) for _ in range(STRANGERS)
    ]
    sockets = [client.connection._sock for client in strangers]
    victim = worker(pool="prefork", concurrency=1, **where)
    app = make_app(**where)
    app.tasks["shop.hold"].delay("held")
    eventually(lambda: "held" in ledger.starts())
    worker(pool="threads", concurrency=4, **where)
    victim.kill9_all()
    eventually(lambda: ledger.runs()["held"] == 2, 60, message="it is recovered")
    ledger.release()
    for job in JOBS:
        app.tasks["shop.note"].delay(job)
    eventually(lambda: set(JOBS) <= set(ledger.finishes()), 60)
    eventually(lambda: not db.private_lists(), message="all is settled")
    assert ledger.runs() == {"held": 2, **dict.fromkeys(JOBS, 1)}
    assert service.unblocked_nobody <= IN_VAIN
    for client, socket in zip(strangers, sockets, strict=True):
        assert client.ping()
        assert client.connection._sock is socket, "it was not cut"
        client.close()
