"""A lone large job: the blocking read brings it, and the claim does not send it again."""

from __future__ import annotations

from typing import Any

import pytest

from celery_superfetch.store.private_lists import END_BYTES
from support.servers.database import Database
from support.servers.proxy import FaultProxy, Words
from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import Inbox

SIZE = 1_000_000


@pytest.mark.parametrize("sent_twice", [False, True], ids=["once", "the control: twice"])
def test_the_server_sends_a_large_job_once(fresh_server, sent_twice):
    """The control: its end has no delivery tag, so that the claim sends it, too."""
    server = fresh_server()
    client, bench = server.client(), Bench(server.client())
    raw = payload(1, filler="x" * SIZE) + b" " * (END_BYTES * sent_twice)
    with Inbox(server.url()) as inbox:
        inbox.settle_in()
        before = client.info("stats")["total_net_output_bytes"]
        bench.push("mail", raw)
        inbox.receive(1)
        sent = client.info("stats")["total_net_output_bytes"] - before
        [message] = inbox.messages
        assert message.headers["filler"] == "x" * SIZE
        message.ack()
    assert round(sent / SIZE) == (2 if sent_twice else 1)
    assert bench.queue() == []


def claims_a_landed_job(words: Words) -> bool:
    return words[0].startswith(b"EVAL") and b'"delivery_tag": "' in words[-1]


@pytest.mark.parametrize("carried_out", [False, True], ids=["landed", "claimed"])
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_death_between_the_read_and_the_claim_loses_nothing(
    worker: Any, shop: Any, ledger: Any, db: Database, server: Any, pool: str, carried_out: bool
) -> None:
    with FaultProxy(server.port) as proxy:
        victim = worker(url=proxy.url(), pool=pool, concurrency=1)
        shop.note.delay("before")
        eventually(lambda: ledger.finishes().get("before") and db.settled(), 30)
        claimed = proxy.hold_at(claims_a_landed_job, carried_out=carried_out)
        shop.note.apply_async(("large",), headers={"filler": "x" * SIZE})
        assert claimed.wait(30)
        eventually(lambda: not db.length("celery"))
        victim.kill9_all()
    worker(pool=pool, concurrency=1)
    eventually(lambda: ledger.finishes().get("large") and db.settled(), 60)
    assert ledger.runs() == {"before": 1, "large": 1}
