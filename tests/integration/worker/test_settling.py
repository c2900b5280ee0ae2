"""A settlement that fails is made later: once, and the job holds up no other one meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
import redis

from celery_superfetch.model.strikes import Decision, Limits
from celery_superfetch.owner.owner import REFUSED_MAX, Owner
from celery_superfetch.signals import job_recovering
from celery_superfetch.transport.deliveries import Delivery
from celery_superfetch.worker.settling import settle
from support.driver import REFUSED_INTERVAL, Driver, Executor
from support.servers.database import Database
from support.servers.proxy import FaultProxy
from support.waiting import always, eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import Inbox

APP = "an app that dead-letters each job whose run was lost"


@pytest.fixture(autouse=True)
def kills() -> Iterator[None]:
    def kill(**_: object) -> Decision:
        return Decision.KILL

    job_recovering.connect(kill, sender=APP)
    yield
    job_recovering.disconnect(kill, sender=APP)


@pytest.fixture
def refusing(bench: Bench) -> Bench:
    """Another program has written to the key of the dead set."""
    bench.client.set(bench.keys.dead, "a text")
    return bench


def dead_count(bench: Bench) -> int:
    return len(list(bench.dead_set.find()))


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


def start(delivery: Delivery) -> None:
    driver = Driver.of(delivery.owner)
    driver.reserve(delivery.job)
    assert driver.start(delivery.job)


def lose_run(delivery: Delivery, app: str = APP) -> None:
    """Its pool process is lost; by the rules of ``APP`` the job is to move to the dead set."""
    settlement, limits = delivery.owner.settlement, Limits.of(delivery.owner.config)
    settle(delivery, settlement.recover_or_kill, "lost", app, limits)


def refuse(delivery: Delivery) -> None:
    """Celery cannot receive the job, which is to move to the dead set."""
    settlement = delivery.owner.settlement
    settle(delivery, settlement.kill, "cannot be received", APP)


def start_and_lose(delivery: Delivery) -> None:
    start(delivery)
    lose_run(delivery)


def catch_up(owner: Owner) -> None:
    with suppress(redis.RedisError):
        owner.catch_up()


def test_a_job_that_has_run_holds_up_no_other_one(url, refusing):
    """The deferred job kept its place in the prefetch: an idle worker claimed nothing more."""
    refusing.push("mail", payload(1), payload(2))
    with consumer(url) as inbox:
        first = delivery_of(inbox)
        start_and_lose(first)
        assert Driver.of(first.owner).is_running(first.job), "its settlement is deferred"
        catch_up(first.owner)
        inbox.receive(2)
        assert inbox.ids() == ["1", "2"]
        refusing.client.delete(refusing.keys.dead)
        first.owner.catch_up()
        assert dead_count(refusing) == 1
        assert first.lease.is_gone
        first.owner.catch_up()
        assert refusing.private(first.owner.name) == [payload(2)]


def test_nor_a_suspect(url, refusing):
    """No suspect was claimed for a solo run, as if the job ran alongside it."""
    refusing.push("mail", payload(1))
    with consumer(url) as inbox:
        start_and_lose(delivery_of(inbox))
        Database(refusing.client).suspect(payload(2), "mail")
        owner = inbox.channel.owner
        claimed = Driver.of(owner).claim_suspect(owner.name, "mail")
        assert claimed is not None
        assert claimed.job.payload == payload(2)


def test_nor_does_it_if_its_channel_was_closed_while_it_ran(url, refusing):
    refusing.push("mail", payload(1), payload(2))
    with consumer(url, is_worker=False) as one, consumer(url, "other", is_worker=False) as other:
        running = delivery_of(one)
        driver = Driver.of(running.owner)
        other.settle_in()
        start(running)
        one.channel.close()
        assert driver.detached_count == 1
        lose_run(running)
        assert driver.detached_count == 0


def test_a_deferred_settlement_is_made_although_its_channel_closes(url, refusing):
    """Once, by the thread that has the owner leave."""
    refusing.push("mail", payload(1))
    with consumer(url, is_worker=False) as inbox:
        delivery = delivery_of(inbox)
        start_and_lose(delivery)
        inbox.channel.close()
        assert delivery.owner.name, "it has a job, and stays registered"
        refusing.client.delete(refusing.keys.dead)
        eventually(lambda: not delivery.owner.name)
        assert dead_count(refusing) == 1
        assert not refusing.client.keys("superfetch:private:*")
        assert not refusing.queue()


def test_a_deferred_settlement_does_nothing_after_its_owner_was_declared_dead(
    url, refusing, caplog
):
    refusing.push("mail", payload(1))
    with consumer(url) as inbox:
        delivery = delivery_of(inbox)
        owner, before = delivery.owner, delivery.owner.name
        start_and_lose(delivery)
        refusing.client.delete(refusing.keys.dead)
        assert refusing.mark(before)
        refusing.reaper().reap()
        assert refusing.queue() == [payload(1)]
        owner.heartbeat()
        owner.catch_up()
        assert delivery.lease.is_gone
        assert refusing.queue() == [payload(1)]
        assert refusing.counters(payload(1)).recoveries == 1
        assert not dead_count(refusing)
        assert caplog.text.count("Lost ownership of job") == 1


def test_a_deferred_settlement_leaves_alone_a_job_that_was_requeued_meanwhile(url, refusing):
    refusing.push("mail", payload(1))
    with consumer(url) as inbox:
        delivery = delivery_of(inbox)
        start_and_lose(delivery)
        Driver.of(delivery.owner).requeue([delivery.job])
        refusing.client.delete(refusing.keys.dead)
        delivery.owner.catch_up()
        assert not dead_count(refusing)
        assert refusing.queue() == [payload(1)]


def test_a_worker_holds_few_jobs_whose_settlement_is_refused(url, refusing):
    """Without a limit it would take the whole queue into its memory."""
    refusing.push("mail", *map(payload, range(REFUSED_MAX + 20)))
    with consumer(url, prefetch=10) as inbox:
        for number in range(REFUSED_MAX):
            start_and_lose(delivery_of(inbox, number))
        inbox.settle_in()
        assert len(inbox.messages) < REFUSED_MAX + 10
        refusing.client.delete(refusing.keys.dead)
        inbox.channel.owner.catch_up()
        assert dead_count(refusing) == REFUSED_MAX
        inbox.receive(REFUSED_MAX + 10)


def test_other_deferred_calls_stop_no_claims(url, refusing):
    """A hundred revokes did, on a server that refused to look for the revoked jobs."""
    with consumer(url) as inbox:
        owner = inbox.channel.owner
        owner.deferred_calls.extend([lambda: None] * REFUSED_MAX)
        assert not owner.has_many_refused
        refusing.push("mail", payload(1))
        inbox.receive(1)


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


def test_only_a_move_to_the_dead_set_ends_its_refusals(url, refusing, caplog):
    """A recovery did, too: the log said that Redis accepts moves to the dead set again."""
    caplog.set_level("INFO")
    refusing.push("mail", payload(1), payload(2))
    with consumer(url, prefetch=2) as inbox:
        one, two = delivery_of(inbox), delivery_of(inbox, 1)
        owner, refusals = one.owner, inbox.channel.qos.refusals
        refuse(one)
        Driver.of(owner).retry_requeues_now()
        owner.catch_up()
        assert one.lease.is_gone, "the refused job is on its queue"
        start(two)
        lose_run(two, "another app")
        assert two.lease.is_gone
        assert refusals.lasts
        refusing.client.delete(refusing.keys.dead)
        refuse(delivery_of(inbox, 2))
        assert not refusals.lasts
        assert caplog.text.count("Redis accepts moves to the dead set") == 1


def test_refusals_are_over_a_while_after_the_last_one(url, refusing):
    """Another worker has moved the job: here no move would end them. Days later the first job of an
    unknown task was dead-lettered without Celery's log line."""
    refusing.push("mail", payload(1))
    with consumer(url) as inbox:
        delivery = delivery_of(inbox)
        refuse(delivery)
        refusals = inbox.channel.qos.refusals
        always(lambda: refusals.lasts, during=2 * REFUSED_INTERVAL)
        eventually(lambda: not refusals.lasts, 2 * REFUSED_INTERVAL)
