"""A settlement that fails is made later: once, and the job holds up no other one meanwhile."""

from __future__ import annotations

from contextlib import suppress

import pytest
import redis

from celery_superfetch.owner.owner import Owner
from celery_superfetch.transport.deliveries import Delivery
from celery_superfetch.worker.settling import settle
from support.driver import Driver, Executor
from support.servers.proxy import FaultProxy
from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import Inbox


@pytest.fixture
def refusing(bench: Bench) -> Bench:
    """Another program has written to the key of the dead set."""
    bench.client.set(bench.keys.dead, "a text")
    return bench


def consumer(url: str, *queues: str, prefetch: int = 1, is_worker: bool = True) -> Inbox:
    """The deferred calls of a worker are made by the test."""
    inbox = Inbox(url, *queues, prefetch=prefetch, consume=False)
    executor = inbox.connection.transport.cycle.executor = Executor()
    executor.endless = is_worker
    inbox.consumer.consume()
    return inbox


def delivery_of(inbox: Inbox, number: int = 0) -> Delivery:
    inbox.receive(number + 1)
    return inbox.messages[number].delivery


def refuse(delivery: Delivery) -> None:
    """Celery cannot receive the job, which is to move to the dead set."""
    settlement = delivery.owner.settlement
    settle(delivery, settlement.kill, "cannot be received", None)


def catch_up(owner: Owner) -> None:
    with suppress(redis.RedisError):
        owner.catch_up()


def test_a_job_that_has_not_run_is_requeued_when_its_deferred_move_is_refused(
    url, proxy: FaultProxy, refusing
):
    """It kept its place in the prefetch: the move was tried again, and refused, each second."""
    refusing.push("mail", payload(1))
    with consumer(proxy.url()) as inbox:
        delivery = delivery_of(inbox)
        owner = delivery.owner
        proxy.refuse()
        proxy.cut()
        refuse(delivery)
        assert delivery.is_open, "the server is away: the call is made later"
        assert len(owner.deferred_calls) == 1
        proxy.heal()
        eventually(lambda: catch_up(owner) or not owner.deferred_calls, 5)
        assert not delivery.is_open
        assert Driver.of(owner).state(delivery.job) == "RETURNING"
        refusing.client.delete(refusing.keys.dead)
        Driver.of(owner).retry_requeues_now()
        eventually(lambda: catch_up(owner) or refusing.queue() == [payload(1)], 5)
