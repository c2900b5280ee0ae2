"""C6. One bad value, one bad job, one bad owner, one bad list: a pass goes on for the others."""

from __future__ import annotations

import logging

import pytest
import redis
from celery import Celery
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_superfetch.app.guard import limits_of
from celery_superfetch.model.strikes import Counters, Decision, Limits, Recovery
from celery_superfetch.signals import ReapedOwner, job_recovering, owner_reaped
from celery_superfetch.store.redis.clients import run_id
from support.workers.bench import Bench, payload

BAD_LIMITS = ["10", 0, -1, 2.5, True, float("nan"), object()]


def shop(limit: object) -> Celery:
    app = Celery("shop", broker="redis://localhost:6399", set_as_current=False)
    app.conf.broker_transport_options = {"app_name": "shop", "strike_limit": 4}

    @app.task(name="shop.note", shared=False, superfetch_strike_limit=limit)
    def note() -> None: ...

    app.finalize()
    return app


@pytest.mark.parametrize("limit", BAD_LIMITS, ids=lambda limit: type(limit).__name__)
def test_a_limit_that_is_none_is_said_once_and_the_options_own_holds(limit, bench, caplog):
    limits = limits_of(shop(limit))
    bench.dead_owner([payload(1)], running=[payload(1)])
    with caplog.at_level(logging.ERROR):
        report = bench.reaper(limits=limits).reap()
        assert limits.strikes("shop.note") == 4
    assert (report.recovered, report.errors) == (1, 0)
    [said] = caplog.messages
    assert "shop.note" in said
    assert repr(limit) in said
    assert "strike_limit=4" in said


def test_a_limit_that_is_a_property_and_raises_is_said_once_and_the_options_own_holds(caplog):
    """It ended each worker at its start, and did not say which task it was."""
    app = shop(3)

    class Moody(type(app.tasks["shop.note"])):  # type: ignore[misc]
        @property
        def superfetch_strike_limit(self) -> int:
            raise RuntimeError("no settings yet")

        superfetch_stop_limit = superfetch_strike_limit

    app.tasks.register(Moody())
    app.tasks["shop.moody"] = moody = Moody()
    moody.name = "shop.moody"
    limits = limits_of(app)
    for _ in range(2):
        assert (limits.strikes("shop.moody"), limits.stops("shop.moody")) == (4, 50)
    one, two = caplog.messages
    assert "Task shop.moody: superfetch_strike_limit must be None or a whole number" in one
    assert "got RuntimeError('no settings yet')" in one
    assert "superfetch_stop_limit" in two


@pytest.mark.parametrize("limit", [None, 1, 10], ids=repr)
def test_a_limit_that_is_one_holds(limit):
    assert limits_of(shop(limit)).strikes("shop.note") == limit


@pytest.mark.parametrize("limit", [None, 1, 10], ids=repr)
def test_a_task_has_its_own_stop_limit(limit):
    app = shop(3)
    assert limits_of(app).stops("shop.note") == 50
    app.tasks["shop.note"].superfetch_stop_limit = limit
    assert limits_of(app).stops("shop.note") == limit


def test_a_stop_limit_that_is_none_is_said_and_the_options_own_holds(caplog):
    app = shop(3)
    app.tasks["shop.note"].superfetch_stop_limit = "fifty"
    assert limits_of(app).stops("shop.note") == 50
    assert "superfetch_stop_limit must be None or a whole number" in caplog.text


def failing(name: str) -> Limits:
    """Limits that cannot be told of one task."""

    def strikes(task: str | None) -> int:
        if task == name:
            raise RuntimeError("a property of the task's")
        return 3

    return Limits(strikes, 20)


def test_a_job_that_cannot_be_decided_on_holds_up_no_other(bench):
    """Neither in its batch, nor behind it, nor in another list, nor of another owner. For itself
    the options hold: else it would stay with its dead owner as long as its task is like that."""
    bad = payload("bad", task="shop.bad")
    good = [payload(number) for number in range(120)]
    owner = bench.dead_owner([*good[:60], bad, *good[60:119]], lists=["mail", "more"])
    bench.give(owner.owner, "more", [good[119]])
    other = bench.dead_owner([payload("other")])
    reaper = bench.reaper(limits=failing("shop.bad"))
    report = reaper.reap()
    assert bench.private(owner) == []
    assert (report.recovered, report.errors) == (122, 1)
    assert set(report.dead) == {owner.owner, other.owner}
    assert set(bench.queue()) == {*good[:119], bad, payload("other")}
    assert bench.queue("more") == [good[119]]


def no_notice(queue_list: str) -> bytes:
    raise ValueError(queue_list)


@pytest.mark.parametrize("app_name", ["shop", "another"])
def test_a_job_that_cannot_be_decided_on_is_dead_lettered_by_the_options(make_bench, app_name):
    """Not by another app, which does not know its task."""
    bench, bad = make_bench(strike_limit=1), payload("bad", task="shop.bad")
    bench.dead_owner([bad], running=[bad], app=app_name)
    report = bench.reaper(limits=failing("shop.bad")).reap()
    assert (report.killed, report.recovered) == ((1, 0) if app_name == "shop" else (0, 1))


def test_a_notice_that_cannot_be_made_keeps_no_job_with_its_dead_owner(make_bench, caplog):
    bench = make_bench(strike_limit=1)
    owner = bench.dead_owner([payload(1)], running=[payload(1)])
    sender = object()
    job_recovering.connect(lambda **_: Decision.KILL, sender=sender, weak=False)
    report = bench.reaper(sender=sender, notice=no_notice).reap()
    assert (report.killed, report.errors, bench.private(owner)) == (1, 1, [])
    assert "its caller gets no failure notification" in caplog.text


def test_a_server_that_refuses_decides_nothing(make_bench):
    """The control: such a job stays where it is, and the next pass tries again."""
    bench = make_bench(strike_limit=1)
    owner = bench.dead_owner([payload(1)], running=[payload(1)])

    def strikes(task: str | None) -> int:
        raise redis.ResponseError("refused")

    report = bench.reaper(limits=Limits(strikes, 20)).reap()
    assert (report.killed, report.recovered) == (0, 0)
    assert report.errors
    assert bench.private(owner) == [payload(1)]


def test_the_rest_of_a_pass_is_reached(bench):
    """Tombstones and the caps of the dead set, whatever the others raise."""
    left = bench.dead_owner([payload("left")])
    bench.reaper().reap()
    bench.give(left.owner, "mail", [payload("late")])
    bench.client.lpop("mail")
    bench.killed(payload("old"))
    bench.die_at(next(iter(bench.dead_set.find())), 1)
    bad = payload("bad", task="shop.bad")
    bench.dead_owner([bad])
    report = bench.reaper(limits=failing("shop.bad")).reap()
    assert set(bench.queue()) == {payload("late"), bad}
    assert len(bench.dead_set) == 0, "trimmed"
    assert report.errors


ODD_FACTS: dict[str, dict[str, str]] = {
    "a pid that is none": {"pid": str(10**30)},
    "a pid below 0": {"pid": "-1"},
    "pool pids that are none": {"pid": str(10**9), "pool": f'[[{10**30}, "1"], [-7, "1"]]'},
    "a name that is no text": {"lists": '{"\\ud800": 0, "mail": 0}'},
    "intervals that are none": {"heartbeat_interval": "nan", "owner_ttl": "inf"},
    "a pool of another form": {"pool": "[1, 2]"},
    "a text": {},
}


@pytest.mark.parametrize("record", ODD_FACTS.values(), ids=ODD_FACTS)
@pytest.mark.parametrize("lives", [True, False])
def test_an_owner_that_says_odd_things_holds_up_no_other(record, bench, lives):
    odd, dead = bench.owner() if lives else bench.dead_owner(), bench.dead_owner([payload(1)])
    key, reaper = bench.keys.owner_record(odd.owner), bench.reaper()
    if record:
        bench.client.hset(key, mapping=record)
    else:
        bench.client.delete(key)
        bench.client.set(key, "no hash")
    assert dead.owner in reaper.reap().dead
    reaper.reap()
    assert bench.queue() == [payload(1)]
    assert dead.owner not in bench.registry.owners()


@pytest.mark.parametrize(
    ("member", "score"), [(b"\xff|1|x", 1.0), (b"a|1|x", float("inf"))], ids=["name", "time"]
)
def test_a_row_that_is_no_owners_ends_neither_passes_nor_hearts(bench, member, score):
    mine = bench.owner()
    bench.client.zadd(bench.keys.owners, {member: score})
    bench.client.zadd(bench.keys.reaped, {member: score})
    bench.client.sadd(bench.keys.host(mine.process.host), member)
    bench.dead_owner([payload(1)])
    first = bench.registry.heartbeat(mine, 0, {})
    assert bench.registry.heartbeat(mine, first.now, {}).status == "ok"
    bench.reaper().reap()
    assert bench.queue() == [payload(1)]


def test_a_queue_key_of_another_type_holds_its_own_jobs_up_only(bench):
    owner = bench.dead_owner(lists=["broken", "mail"])
    bench.give(owner.owner, "broken", [b"1", b"2"])
    bench.give(owner.owner, "mail", [b"3"])
    bench.client.set("broken", "a text")
    report = bench.reaper().reap()
    assert report.recovered == 1
    assert report.errors
    assert bench.queue() == [b"3"]
    assert bench.private(owner, "broken") == [b"2", b"1"]
    assert bench.counters(b"1") == Counters(), "and nothing was counted against them"
    bench.client.delete("broken")
    assert bench.reaper().reap().recovered == 2, "mended, and the tombstone is drained"
    assert bench.queue("broken") == [b"1", b"2"]


def test_a_job_whose_kill_the_server_refuses_holds_up_no_other(own):
    """A7. Its record is more than one argument may have: the server hangs up, at each pass."""
    bench, guard = Bench(own), object()
    # JSON within JSON: each quote has two bytes, and base64 makes a third more of them.
    bad = [payload(f"bad{n}", task="shop.bad", padding='"' * 450_000) for n in range(2)]
    good = [payload(number) for number in range(120)]
    owner = bench.dead_owner([*good[:60], bad[0], *good[60:], bad[1]], running=bad)

    def kill(recovery: Recovery, **_: object) -> Decision:
        return Decision.KILL if recovery.task == "shop.bad" else Decision.RECOVER

    job_recovering.connect(kill, sender=guard)
    own.config_set("proto-max-bulk-len", 1024 * 1024)
    for _ in range(2):
        report = bench.reaper(sender=guard).reap()
        assert report.errors, "it is named"
        assert bench.private(owner) == bad[::-1]
        assert bench.queue() == good, "in their old order"
    own.config_set("proto-max-bulk-len", 512 * 1024 * 1024)
    assert bench.reaper(sender=guard).reap().killed == 2
    assert bench.private(owner) == []


def test_a_claim_by_a_name_that_is_none_of_ours_holds_up_no_other(bench):
    """As another version may give it, or somebody's hand: it is a job, and older than all."""
    owner = bench.dead_owner([payload(1), payload(2)], running=[payload(1)])
    odd = {"zz:mail": payload("odd"), b"\xff:mail": payload("no text")}
    bench.client.hset(bench.keys.private(owner.owner), mapping=odd)
    for _ in range(2):
        bench.reaper().reap()
        assert bench.queue() == [payload("odd"), payload(1), payload(2)]
    assert bench.counters(payload(1)).history[0]["strike"] == "exact"
    kept = bench.client.hgetall(bench.keys.private(owner.owner))
    assert kept == {b"\xff:mail": payload("no text")}, "what cannot be asked for stays"
    assert owner.owner in bench.registry.tombstones()


def test_a_tombstone_is_not_forgotten_while_a_job_is_left(bench):
    """A10. A day later its record had expired: nothing said in which list the job was."""
    owner = bench.dead_owner([payload(1)])
    bench.client.set("mail", "a text")
    assert bench.reaper().reap().errors
    for key in bench.keys.owner_record(owner.owner), bench.keys.private(owner.owner):
        if bench.client.ttl(key) >= 0:
            bench.client.delete(key)  # as the server does a day later
    bench.client.zadd(bench.keys.reaped, {owner.owner: 1})
    assert bench.reaper().reap().errors
    assert owner.owner in bench.registry.tombstones()
    bench.client.delete("mail")
    assert bench.reaper().reap().recovered == 1
    assert bench.queue() == [payload(1)]
    assert bench.registry.tombstones() == {}
    assert bench.client.ttl(bench.keys.owner_record(owner.owner)) > 0
    assert bench.record(owner).state == "reaped", "for whoever thaws"


def test_an_error_on_one_owner_does_not_end_the_pass(bench):
    owners = [bench.dead_owner([payload(n)]) for n in range(3)]
    bench.client.delete(bench.keys.private(owners[1].owner))
    bench.client.set(bench.keys.private(owners[1].owner), "a text")
    report = bench.reaper().reap()
    assert report.errors
    assert report.recovered == 2
    assert set(bench.queue()) == {payload(0), payload(2)}


#: Commands after the mark of an owner that has claims, as a proxy sees them: the first is sent to
#: close its connections, the second reads its claims.
AFTER_MARK = {
    "cut": lambda words: words[:2] == [b"CLIENT", b"LIST"],
    "claims": lambda words: words[0] == b"HKEYS",
}


@pytest.mark.parametrize("lost", AFTER_MARK)
def test_a_death_is_reported_though_the_connection_is_lost_after_the_mark(
    client, proxy, caplog, lost
):
    """It was marked, so no later pass would report it."""
    there = client.connection_pool.connection_kwargs["db"]
    once = redis.Redis(port=proxy.port, db=there, retry=Retry(NoBackoff(), 0))
    bench, sender, told = Bench(once), object(), list[ReapedOwner]()
    owner_reaped.connect(lambda reaped, **_: told.append(reaped), sender=sender, weak=False)
    with redis.Redis(port=proxy.port, db=there) as other:
        dead = bench.dead_owner(
            [payload(1)], connections=(other.client_id(),), run_id=run_id(client)
        )
        cut = proxy.cut_at(AFTER_MARK[lost], reply_lost=False)
        reaper = bench.reaper(sender=sender)
        with caplog.at_level(logging.WARNING):
            reaper.reap()
            assert cut.is_set()
            reaper.reap()
    assert bench.queue() == [payload(1)]
    assert [reaped.owner for reaped in told] == [dead.owner]
    assert [death["owner"] for death in bench.stats.deaths()] == [dead.owner]
    assert caplog.text.count("Worker without a node name declared dead (owner=") == 1
