"""The primary changes under load: handed over, promoted by Sentinels, or killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import celery
import pytest

from support.hosts import Host, namespaces_available
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.servers.proxy import FaultProxy
from support.servers.sentinel import NAME, Replicated, SentinelGroup, role
from support.waiting import always, eventually
from support.workers.load import Load
from support.workers.worker import Worker

#: Any outage here is longer than `owner_ttl`: nobody is to be taken for dead by it.
OPTIONS = {"heartbeat_interval": 0.5, "owner_ttl": 2, "reap_interval": 1}

#: Pool -> its size. Each worker serves the queue of its pool's name; solo is busy throughout.
POOLS = {"prefork": 3, "threads": 3, "solo": 1}
BUSY = [pool for pool in POOLS if pool != "solo"]

#: Where a job runs throughout. Before 5.7 Celery forgets at a reconnect which of its processes
#: are at work, and lets other jobs wait behind what they run, for as long as it runs.
HOLDING = [pool for pool in POOLS if pool != "prefork" or celery.VERSION >= (5, 7)]


#: Jobs that may run twice, since the replica had not heard of their acks.
LAG = 3

#: More than run while a primary that has woken is not told yet that it is none.
JOBS = 600


@pytest.fixture
def start() -> Iterator[Callable[[Replicated], Replicated]]:
    """`start(Replicated())`"""
    with ExitStack() as stack:
        yield stack.enter_context


def place_of(group: Replicated, url: str, **settings: Any) -> dict[str, Any]:
    """Where apps find their broker, and the results that no failover concerns."""
    conf: dict[str, Any] = {"broker_transport_options": {"socket_timeout": 5}}
    if isinstance(group, SentinelGroup):
        conf["broker_transport_options"]["master_name"] = NAME
        return {"url": group.sentinel_url(), "result_url": url, "conf": conf, **settings}
    return {"url": group.url(), "result_url": url, "conf": conf, **settings}


def fleet(
    worker: Any, place: dict[str, Any], options: dict[str, float] = OPTIONS
) -> dict[str, Worker]:
    """A worker of each pool. One is elsewhere, where only its heartbeats tell that it lives."""
    hosts = {"threads": Host("elsewhere")} if namespaces_available()[0] else {}
    started = {
        pool: worker(
            pool=pool,
            concurrency=size,
            name=pool,
            queues=[pool],
            host=hosts.get(pool),
            options=options,
            ready=False,
            **place,
        )
        for pool, size in POOLS.items()
    }
    for one in started.values():
        one.wait_ready()
    return started


def processes(owners: Iterable[str]) -> set[str]:
    """Owners without their nonces: an idle one that reconnects is another."""
    return {owner.rpartition("|")[0] for owner in owners}


def heard_again(there: Database, owners: set[str]) -> None:
    """Every owner is heard at this server, and none other is."""
    there.wait_heard(there.heard_of(owners))
    assert set(there.owners()) == owners


@pytest.mark.parametrize("kind", [Replicated, SentinelGroup], ids=["list", "sentinel"])
def test_a_planned_and_an_unplanned_failover_lose_and_double_nothing(
    worker, make_app, ledger, url, start, kind
):
    group = start(kind())
    place = place_of(group, url)
    workers = fleet(worker, place)
    app = make_app(**place)
    owners = set(Database(group.primary.client()).owners())
    assert len(owners) == len(POOLS)

    with Load(app, ledger, BUSY, name="planned", every=0.05, retry=True) as planned:
        held = [planned.hold(pool) for pool in HOLDING]
        planned.wait_progress()
        there = Database(group.failover().client())
        heard_again(there, owners)
        planned.wait_progress(5)

    def quiet() -> bool:
        assert sorted(job for jobs in there.held().values() for job in jobs) == sorted(held)
        return True

    eventually(quiet, message="all but what is held is settled")

    # What the primary has said is what the replica knows: now nothing hangs on the lag.
    group.wait_in_step()
    group.kill_primary()
    there = Database(group.promote().client())
    with Load(app, ledger, BUSY, name="killed", every=0.05, retry=True) as killed:
        heard_again(there, owners)
        killed.wait_progress(5)
        assert not set(held) & set(ledger.finishes()), "they ran all the time"
        second = killed.settle()
    first = planned.settle()
    assert first.clean, first
    assert second.clean, second
    eventually(lambda: not there.private_lists(), message="the acks arrived")
    assert there.stat("owners_reaped") == 0
    # Solo learns only now, after its job, that its connection is gone.
    eventually(lambda: processes(there.owners()) == processes(owners), message="all go on")
    for one in workers.values():
        one.term()
    assert [one.wait_exit() for one in workers.values()] == [0] * len(workers)
    assert there.owners() == []


@pytest.mark.parametrize("kind", [Replicated, SentinelGroup], ids=["list", "sentinel"])
def test_a_primary_that_is_cut_off_for_longer_than_owner_ttl_convicts_nobody(
    worker, make_app, ledger, url, start, kind
):
    group = start(kind())
    place = place_of(group, url)
    # Whoever waits for it gives up before it wakes: its last act may be to take what is sent to it.
    place["conf"]["broker_transport_options"]["socket_timeout"] = 2
    # Who comes first to the new primary waits for the others: on a busy machine for some seconds.
    options = {**OPTIONS, "owner_ttl": 6}
    fleet(worker, place, options)
    app = make_app(**place)
    with Load(app, ledger, BUSY, name="cut", every=0.05, retry=True) as load:
        held = [load.hold(pool) for pool in HOLDING]
        load.wait_progress()
        there = Database(group.primary.client())
        owners = {there.owner_of(job) for job in held}
        group.wait_in_step()
        before = group.freeze_primary()
        there = Database(group.promote().client())
        since = there.heard_of(owners)
        always(lambda: role(group.primary) == "master", during=options["owner_ttl"] + 1)
        if isinstance(group, SentinelGroup):
            before.resume()
            eventually(lambda: role(before) == "slave", message="the Sentinels tell it")
        else:  # an operator sees to it that it comes back as a replica, or not at all
            before.kill()
        there.wait_heard(since)
        load.wait_progress(5)
        account = load.settle()
    assert not account.lost, account
    assert len(account.doubled) <= LAG, account
    assert there.stat("owners_reaped") == 0
    eventually(lambda: not there.private_lists(), message="the acks arrived")


def test_stock_takes_no_job_after_its_primary_handed_over(worker, make_app, ledger, url, start):
    """The control: it stays with the replica, or its process ends, though nobody told it to."""
    group = start(Replicated())
    place = place_of(group, url, superfetch=False)
    worker(concurrency=2, **place)
    make_app(**place).tasks["shop.hold"].delay("before", 1)
    eventually(ledger.starts)
    after = group.failover()
    make_app(superfetch=False, url=after.url(), result_url=url).tasks["shop.note"].delay("after")
    always(lambda: "after" not in ledger.starts(), during=3, message="nobody takes it")
    assert Database(after.client()).waiting() == ["after"]


def test_an_owner_that_does_not_follow_never_settles_its_job(worker, make_app, ledger, url, start):
    """The control: what becomes of a running job when the servers of a list are strangers."""
    group = start(Replicated())
    place = place_of(group, url)
    worker(**one_busy(without="following"), **place)
    make_app(**place).tasks["shop.hold"].delay("held")
    eventually(ledger.starts)
    there = Database(group.failover().client())
    ledger.release()
    eventually(ledger.finishes)
    always(there.held, during=3, message="it stays in the private list")


@pytest.mark.parametrize("without", ["", "leaving"])
def test_an_address_that_leads_elsewhere_is_asked_again(
    worker, make_app, ledger, url, start, without
):
    """A virtual IP or a name: the old connections live, and lead to a replica."""
    group = start(Replicated())
    with FaultProxy(group.primary.port) as address:
        place = {"url": address.url(), "result_url": url}
        worker(**one_busy(without), **place)
        make_app(**place).tasks["shop.hold"].delay("held")
        eventually(ledger.starts)
        after = group.failover()
        address.upstream = ("127.0.0.1", after.port)
        there = Database(after.client())
        make_app(superfetch=False, **place).tasks["shop.note"].delay("after")
        ledger.release()
        eventually(ledger.finishes)
        (owner,) = eventually(there.owners, message="it has moved")
        before = there.heard(owner)
        if without:
            eventually(lambda: silent(there, owner), message="it is not heard")
        else:
            # Perhaps under a new name, if it held nothing when it connected again.
            eventually(
                lambda: max(map(there.heard, there.owners())) > before, message="it is heard"
            )
            eventually(lambda: not there.held(), message="it is acked")
            eventually(lambda: "after" in ledger.finishes())


@pytest.mark.parametrize("without", ["", "leaving_results"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_results_behind_an_address_that_leads_elsewhere_are_stored_there(
    worker, make_app, ledger, url, start, without, pool
):
    """The old primary closes no connection, and refuses each write as a replica: each job ran for a
    minute, was requeued and ran again. The chord's parts are counted there, too."""
    group = start(Replicated())
    with FaultProxy(group.primary.port) as address:
        place = {"url": url, "result_url": address.url()}
        one = worker(app="choirs", concurrency=2, pool=pool, env={"WITHOUT": without}, **place)
        app = make_app(**place)

        def sing(*indexes: int) -> Any:
            parts = [app.signature("choir.part", (index,)) for index in indexes]
            result = celery.chord(parts, app.signature("choir.body"), app=app)()
            eventually(lambda: {f"part {index}" for index in indexes} <= set(ledger.starts()))
            return result

        before = sing(0, 1)
        for part in (0, 1):
            ledger.release(f"part {part}")
        before.get(timeout=30)  # the connections are open
        after = sing(2, 3)
        address.upstream = ("127.0.0.1", group.failover().port)
        ledger.release()
        one.wait_log("could not store its result (")
        if without:
            always(lambda: ledger.runs()["body"] == 1, during=5, message="it is refused for ever")
            return
        answer = make_app(**place).AsyncResult(after.id).get(timeout=30)
        assert sorted(index for index, _pid in answer) == [2, 3]
        assert ledger.runs() == {**{f"part {n}": 1 for n in range(4)}, "body": 2}


def silent(db: Database, owner: str) -> bool:
    """Whether an owner is not heard any more; what the replica took late may come first."""
    before = db.heard(owner)
    always(lambda: db.heard(owner) == before, during=3)
    return True


def one_busy(without: str) -> dict[str, Any]:
    """A worker with one thread."""
    env = {"WITHOUT": without}
    return {"pool": "threads", "concurrency": 1, "options": OPTIONS, "env": env}


def test_a_sentinel_that_does_not_coordinate_loses_what_the_old_primary_still_takes(
    make_app, ledger, url, start
):
    """What is not promised, and why the documentation asks for `COORDINATED`."""
    group = start(SentinelGroup())
    before = group.primary
    note = make_app(**place_of(group, url)).tasks["shop.note"]
    note.delay("warm")
    after = group.failover(coordinated=False)
    note.delay("lost")
    assert Database(before.client()).waiting() == ["warm", "lost"]
    assert Database(after.client()).waiting() == ["warm"]


@pytest.mark.parametrize("without", ["", "home"])
def test_a_primary_that_wakes_after_the_election_is_believed_by_nobody(
    worker, make_app, ledger, url, start, without
):
    """Whoever waits for it hears it before any Sentinel has told it: jobs stood still for 50 s, ran
    again, and their acks found nothing."""
    group = start(SentinelGroup())
    place = place_of(group, url)
    # The heart gives up on it long before the loop does.
    place["conf"]["broker_transport_options"]["socket_timeout"] = 30
    one = worker(**{**one_busy(without), "concurrency": 3}, **place)
    hold = make_app(**place).tasks["shop.hold"]
    jobs = [f"job-{number}" for number in range(JOBS)]
    for job in jobs:
        hold.delay(job, 0.1)
    eventually(lambda: len(ledger.finishes()) > 10)
    there = Database(group.primary.client())
    (owner,) = there.owners()
    before = group.freeze_primary()
    ran = set(ledger.starts())
    there = Database(group.promote().client())
    since = there.heard_of({owner})
    there.wait_heard(since)
    before.resume()
    if without:
        eventually(lambda: role(before) == "slave", 60, message="the Sentinels tell it")
        eventually(lambda: len(twice(ledger)) > LAG, 60, message="they run again")
        return
    eventually(lambda: set(jobs) <= set(ledger.finishes()), 30, message="all run, with no pause")
    eventually(lambda: not there.private_lists(), message="the acks arrived")
    assert len(twice(ledger)) <= LAG, twice(ledger)
    assert set(twice(ledger)) <= ran
    assert one.log().count("Lost ownership of job") <= LAG
    assert len(there.owners()) == 1


def twice(ledger: Ledger) -> list[str]:
    return [job for job, runs in ledger.starts().items() if len(runs) > 1]
