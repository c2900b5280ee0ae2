"""What a blocking read let land, until the next claim of its owner names it."""

from __future__ import annotations

from functools import partial

import pytest
import redis

from celery_superfetch.model.job import Counters
from celery_superfetch.store.private_lists import LARGE_BYTES
from celery_superfetch.store.redis.server import is_temporary
from support.driver import Driver
from support.interruption import interrupted
from support.workers.bench import Bench, payload

ONE, TWO, THREE, FOUR = (payload(n) for n in range(1, 5))
MAIL = {"mail": 0}
LARGE, OTHER = (payload(n, filler="x" * LARGE_BYTES) for n in (1, 2))


@pytest.mark.parametrize(
    ("landed", "waiting", "most", "turn", "taken"),
    [
        pytest.param([ONE], [TWO], 10, 1, [ONE, TWO], id="before others"),
        pytest.param([ONE], [TWO], 10, 0, [ONE], id="alone, since its list was found dry"),
        pytest.param([ONE, TWO], [], 1, 1, [ONE], id="of more than is asked for the rest stays"),
        pytest.param([], [ONE], 1, 1, [ONE], id="none, since another thread has put it back"),
    ],
)
def test_the_next_claim_names_what_landed(bench, owner, landed, waiting, most, turn, taken):
    if landed:
        bench.land(owner, "mail", *landed)
    bench.push("mail", *waiting)
    claims = bench.driver.claim(owner.owner, ["mail"], most, turn, ["mail"])
    jobs = [claimed.job for claimed in claims.jobs]
    assert [job.payload for job in jobs] == taken
    assert bench.landed(owner) == [raw for raw in landed if raw not in taken]
    assert bench.queue() == [raw for raw in waiting if raw not in taken]
    assert bench.held(owner) == jobs[::-1]
    assert [*bench.driver] == jobs


def test_a_claim_that_cannot_be_written_leaves_each_job_whence_it_came(bench, owner):
    bench.client.set(bench.keys.private(owner.owner), "no hash")
    bench.land(owner, "mail", ONE, TWO)
    bench.push("mail", THREE, FOUR)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        bench.driver.claim(owner.owner, ["mail"], 3, 1, ["mail"], 3)
    assert (bench.landed(owner), bench.queue()) == ([TWO, ONE], [THREE, FOUR])
    assert len(bench.driver) == 0
    bench.client.delete(bench.keys.private(owner.owner))
    claims = bench.driver.claim(owner.owner, ["mail"], 10, 1, ["mail"])
    assert [claimed.job.payload for claimed in claims.jobs] == [ONE, TWO, THREE, FOUR]


def test_a_claim_may_take_more_than_lua_hands_over_at_once(bench, owner):
    """A high `claim_limit`: all were lost between the queue and the private list."""
    raws = [payload(n) for n in range(5000)]
    bench.push("mail", *raws)
    claims = bench.claim(owner, most=len(raws), starts=len(raws))
    assert [claimed.job.payload for claimed in claims.jobs] == raws
    assert claims.started == len(raws)
    held = bench.lists.held(owner.owner)
    assert [claimed.job.claim_id for claimed in reversed(claims.jobs)] == [*held.claims]
    assert held.running == {*held.claims}


def test_where_a_key_is_something_else_the_other_lists_are_served(bench, owner):
    bench.client.set(bench.keys.landing(owner.owner, "mail"), "no list")
    bench.land(owner, "slow", ONE)
    claims = bench.driver.claim(owner.owner, ["mail", "slow"], 10, 0, ["mail", "slow"])
    assert [claimed.job.payload for claimed in claims.jobs] == [ONE]
    [(name, why)] = claims.errors
    assert name == "mail"
    assert "WRONGTYPE" in why


# -- a large one, which its read has brought


@pytest.mark.parametrize("landed", [[LARGE], [ONE, LARGE], [LARGE, OTHER], [LARGE, LARGE]])
def test_a_claim_does_not_send_again_what_a_read_has_brought(bench, owner, landed):
    bench.client.set(bench.keys.has_history, 1)
    bench.land(owner, "mail", *landed)
    brought = {"mail": LARGE}
    call = bench.lists.claim_call(owner.owner, ["mail"], 5, 0, ["mail"], 0, brought)
    reply = bench.run(call)
    assert reply[1][1::3] == [1 if raw == LARGE else raw for raw in landed]
    claims = bench.lists.read_claims(call, ["mail"], reply, brought)
    jobs = [claimed.job for claimed in claims.jobs]
    assert [job.payload for job in jobs] == landed
    assert bench.held(owner) == jobs[::-1], "the server has them, whole"


@pytest.mark.parametrize(
    ("landed", "brought"),
    [
        pytest.param(OTHER, LARGE, id="of the same length: it was put back, another landed"),
        pytest.param(ONE, LARGE, id="another, a small one"),
        pytest.param(LARGE[:-1], LARGE, id="another length"),
        pytest.param(LARGE + b" " * 300, LARGE + b" " * 300, id="no tag at its end"),
        pytest.param(ONE, ONE, id="a small one"),
    ],
)
def test_what_the_read_has_surely_not_brought_is_sent(bench, owner, landed, brought):
    bench.land(owner, "mail", landed)
    [claimed] = bench.driver.claim(owner.owner, ["mail"], 5, 0, ["mail"], 0, {"mail": brought}).jobs
    assert claimed.job.payload == landed
    assert bench.held(owner) == [claimed.job]


def test_the_control_by_its_length_alone_another_job_would_be_run(bench, owner):
    """One job would run twice, and its ack would remove the other, which never ran."""
    assert len(OTHER) == len(LARGE)
    bench.land(owner, "mail", OTHER)
    brought = {"mail": LARGE}
    call = bench.lists.claim_call(owner.owner, ["mail"], 5, 0, ["mail"], 0, brought)
    call = call._replace(args=[*call.args[:-1], LARGE[-2:]])
    [claimed] = bench.lists.read_claims(call, ["mail"], bench.run(call), brought).jobs
    assert claimed.job.payload == LARGE
    assert [job.payload for job in bench.held(owner)] == [OTHER]


def test_a_large_one_whose_claim_cannot_be_written_stays_whole_where_it_landed(bench, owner):
    bench.client.set(bench.keys.private(owner.owner), "no hash")
    bench.land(owner, "mail", LARGE)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        bench.driver.claim(owner.owner, ["mail"], 5, 0, ["mail"], 0, {"mail": LARGE})
    assert bench.landed(owner) == [LARGE]


def test_a_large_one_that_landed_for_a_reaped_owner_is_not_claimed(member, bench):
    old = member.name
    bench.land(old, "mail", LARGE)
    assert bench.mark(member, "silent")
    bench.reaper().reap()
    assert not member.claim(["mail"], 5, 0, ["mail"], 0, {"mail": LARGE}).leases
    assert (member.name != old, bench.queue()) == (True, [LARGE])


# -- put back


def test_it_is_put_back_in_front_and_uncounted(bench, owner):
    bench.push("mail", FOUR)
    bench.land(owner, "mail", ONE, TWO, THREE)
    assert bench.lists.return_landed(owner.owner, MAIL) == 3
    assert bench.queue() == [ONE, TWO, THREE, FOUR]
    assert bench.counters(ONE) == Counters()
    assert bench.stat("requeued") == 0
    assert bench.lists.return_landed(owner.owner, MAIL) == 0, "a repetition finds nothing"


def test_a_queue_that_expires_goes_on_expiring(bench, owner):
    bench.land(owner, "mail", ONE)
    bench.lists.return_landed(owner.owner, {"mail": 60_000})
    assert 0 < bench.client.pttl("mail") <= 60_000


@pytest.mark.parametrize("is_queue", [True, False], ids=["queue", "landing list"])
def test_what_cannot_be_put_back_stays_and_holds_up_no_other(bench, owner, is_queue):
    landing = bench.keys.landing(owner.owner, "mail")
    if is_queue:
        bench.land(owner, "mail", ONE)
    bench.client.set("mail" if is_queue else landing, "something else")
    bench.land(owner, "slow", TWO)
    assert bench.lists.return_landed(owner.owner, {"mail": 0, "slow": 0}) == 1
    assert bench.queue("slow") == [TWO]
    if is_queue:
        assert bench.landed(owner) == [ONE]
        bench.client.delete("mail")
        assert bench.driver.reconcile(owner.owner, MAIL) == 1
        assert bench.queue() == [ONE]


def test_a_doubt_puts_it_back_behind_what_was_claimed_before(bench, owner, lost):
    """Whoever looks for lost replies has closed the reads whose replies spoke of it."""
    [kept] = bench.take(owner, payload("kept"))
    bench.push("mail", ONE, TWO)
    bench.run(bench.lists.claim_call(owner.owner, ["mail"], 2, 1, [], 0))
    bench.land(owner, "mail", THREE)
    bench.push("mail", FOUR)
    assert bench.driver.reconcile(owner.owner, MAIL) == 3
    assert bench.queue() == [ONE, TWO, THREE, FOUR]
    assert bench.held(owner) == [kept.job]
    assert lost == []


def test_what_landed_for_a_forgotten_owner_goes_back(member, bench):
    old, raws = member.name, [ONE, TWO]
    bench.land(old, "mail", *raws)
    bench.client.delete(bench.keys.owners, bench.keys.owner_record(old))
    assert not member.claim(["mail"], 2, 1, ["mail"]).leases, "it is another's by then"
    assert member.name != old
    member.return_landed(old, ["mail"])
    assert (bench.queue(), bench.landed(old)) == (raws, []), "in the old order"
    assert bench.stat("ownership_lost") == 0


def test_what_landed_for_a_reaped_owner_is_recovered_and_not_put_back_twice(member, bench):
    old = member.name
    bench.land(old, "mail", ONE)
    assert bench.mark(member, "silent")
    bench.reaper().reap()
    assert (bench.queue(), bench.landed(old)) == ([ONE], [])
    member.return_landed(old, ["mail"])
    assert bench.queue() == [ONE]
    assert bench.counters(ONE) == Counters(), "nobody has seen it"


def test_while_the_server_is_away_putting_back_waits(fresh_server, make):
    server = fresh_server(appendonly=True, appendfsync="always")
    bench = Bench(server.client())
    member = make(params={"host": "127.0.0.1", "port": server.port})
    member.join(1, MAIL)
    bench.land(member.name, "mail", ONE)
    server.kill()
    member.return_landed(member.name, ["mail"])
    assert member.deferred_calls
    with pytest.raises(redis.ConnectionError):
        member.catch_up()
    server.restart()
    member.catch_up()
    assert (bench.queue(), bench.landed(member.name)) == ([ONE], [])


@pytest.mark.parametrize("is_deferred", [True, False])
def test_putting_back_that_is_interrupted_is_done_again(make, proxy, bench, is_deferred):
    member = make(proxy.url())
    member.join(1, MAIL)
    bench.land(member.name, "mail", ONE)
    put_back = partial(member.return_landed, member.name, ["mail"])
    if is_deferred:
        member.deferred_calls.append(put_back)
    proxy.stall()
    with interrupted():
        member.catch_up() if is_deferred else put_back()
    proxy.heal()
    member.catch_up()
    assert (bench.queue(), bench.landed(member.name)) == ([ONE], [])


def test_nobody_leaves_while_something_has_landed_for_it(member, bench):
    """Else it would lie there for ever."""
    bench.land(member, "mail", ONE)
    member.leave(1)
    assert member.name
    assert bench.landed(member) == [ONE]
    Driver.of(member).needs_reconcile = True
    member.leave(1)
    assert not member.name
    assert bench.key_names() == {"mail", bench.keys.served}
    assert bench.queue() == [ONE]


def test_a_server_that_refuses_all_writes_refuses_what_landed_and_waits_as_a_whole(bench, owner):
    """Redis 6.2 refused each list by itself, inside the script: a worker behind an address that
    leads to another primary by now blamed its queues, and stayed with the replica."""
    bench.land(owner, "mail", ONE)
    bench.push("mail", TWO)
    bench.client.config_set("min-replicas-to-write", 1)
    try:
        for call in (
            partial(bench.claim, owner, ["mail"], landed=["mail"]),
            partial(bench.claim, owner, ["mail"]),
            partial(bench.lists.return_landed, owner.owner, MAIL),
        ):
            with pytest.raises(redis.ResponseError) as refused:
                call()
            assert is_temporary(refused.value)
    finally:
        bench.client.config_set("min-replicas-to-write", 0)
    assert (bench.landed(owner), bench.queue()) == ([ONE], [TWO])
