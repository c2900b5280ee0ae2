"""Which queues are paused: the hash, whatever anybody wrote there, and the claims that read it."""

from __future__ import annotations

import json

import pytest

from celery_superfetch.errors import BadQueue
from celery_superfetch.store.paused_queues import BY_MAX_CHARS, PAUSED_MAX, Pause
from support.workers.bench import Bench, payload


def test_a_pause_has_its_time_and_its_author_and_stays_until_it_is_ended(bench):
    before = bench.database.server_time()
    pause, is_new = bench.paused.pause("mail", "ann@web1")
    assert is_new
    assert before <= pause.at <= bench.database.server_time()
    assert bench.paused.all() == {"mail": Pause(pause.at, "ann@web1")}
    assert bench.client.ttl(bench.keys.paused) == -1, "it survives whatever expires"

    assert bench.paused.pause("mail", "bob@web2") == (pause, False), "the first one stays"
    assert bench.paused.resume("mail") == pause
    assert bench.paused.resume("mail") is None
    assert not bench.client.exists(bench.keys.paused)


@pytest.mark.parametrize(
    "name",
    ["", "mail\x06\x163", "x" * 1001, "half \udc80"],
    ids=["empty", "a list", "long", "no UTF-8"],
)
def test_a_name_that_no_queue_can_have_is_refused(bench, name):
    with pytest.raises(BadQueue):
        bench.paused.pause(name, "ann")
    assert bench.paused.resume(name) is None
    assert not bench.client.exists(bench.keys.paused)


def test_hostile_names_are_names(bench):
    names = ["a b", "x\n*3\r\n$8\r\nFLUSHALL", "'; return 1", "%s{}", "<b>", "\x1b[2J", "mail\x06"]
    for name in names:
        bench.paused.pause(name, "\x1b[2J" * BY_MAX_CHARS)
    assert bench.paused.all().keys() == {*names}
    assert {len(pause.by) for pause in bench.paused.all().values()} == {BY_MAX_CHARS}
    owner = bench.owner(lists=names).owner
    for name in names:
        bench.push(name, payload(name))
    assert bench.driver.claim(owner, names, 9).paused == {*names}
    assert bench.registry.heartbeat(bench.owner(), 0, {}).paused == {*names}


@pytest.mark.parametrize("row", ["", "1", "[]", '{"at": "x", "by": 7}', "\xff", "[" * 100_000])
def test_a_row_by_hand_pauses_too(bench, row):
    bench.client.hset(bench.keys.paused, "mail", row)
    assert bench.paused.all() == {"mail": Pause(0, "")}
    assert bench.paused.has("mail")
    assert bench.paused.resume("mail") == Pause(0, "")


def test_more_than_a_thousand_are_refused(bench):
    rows = {f"q{n}": json.dumps({}) for n in range(PAUSED_MAX)}
    bench.client.hset(bench.keys.paused, mapping=rows)
    with pytest.raises(BadQueue, match="1000 queues are paused already"):
        bench.paused.pause("mail", "ann")
    assert not bench.paused.pause("q7", "ann")[1], "one of them is paused as before"


def test_a_key_of_another_type_pauses_nothing_and_the_next_pause_replaces_it(bench, caplog):
    bench.client.set(bench.keys.paused, "a stranger's")
    owner = bench.owner()
    bench.push("mail", payload(1))
    bench.client.lpush(bench.keys.probation("mail"), payload(2))
    assert bench.registry.heartbeat(owner, 0, {}).paused == frozenset()
    assert bench.paused.all() == {}
    assert not bench.paused.has("mail")
    assert bench.paused.resume("mail") is None
    assert bench.driver.claim_suspect(owner.owner, "mail") is not None
    bench.driver.leave()
    assert len(bench.driver.claim(owner.owner, ["mail"], 9).jobs) == 2

    assert bench.paused.pause("mail", "ann")[1]
    assert "superfetch:paused: it must hold the paused queues, and was a string" in caplog.text
    bench.push("mail", payload(3))
    assert not bench.driver.claim(owner.owner, ["mail"], 9).jobs


def test_a_claim_takes_nothing_from_any_list_of_a_paused_queue(bench):
    lists = ["mail", "mail\x06\x163", "mailing", "mail\x06\x169"]
    owner = bench.owner(lists=lists).owner
    for name in lists:
        bench.push(name, payload(f"at {name}"))
    bench.paused.pause("mail", "ann")
    for width in (1, 2, 4):
        claims = bench.driver.claim(owner, lists, 9, width)
        assert claims.paused == {"mail", "mail\x06\x163", "mail\x06\x169"}
        assert [claimed.job.queue_list for claimed in claims.jobs] == ["mailing"]
        bench.driver.leave()
    bench.paused.resume("mail")
    assert len(bench.driver.claim(owner, lists, 9).jobs) == 4, "the control: nothing is paused"


def test_what_a_paused_queue_has_let_land_stays_there_and_returns_to_its_front(bench):
    owner = bench.owner().owner
    bench.land(owner, "mail", payload(1), payload(2))
    bench.push("mail", payload(3))
    bench.paused.pause("mail", "ann")
    claims = bench.driver.claim(owner, ["mail"], 9, 1, ["mail"])
    assert not claims.jobs
    assert claims.paused == {"mail"}
    assert bench.lists.return_landed(owner, {"mail": 0}) == 2
    assert bench.queue("mail") == [payload(1), payload(2), payload(3)]


def test_a_suspect_of_a_paused_queue_waits(bench):
    owner = bench.owner().owner
    bench.client.lpush(bench.keys.probation("mail\x06\x163"), payload(1))
    bench.client.sadd(bench.keys.on_probation, "mail\x06\x163")
    bench.paused.pause("mail", "ann")
    assert bench.driver.claim_suspect(owner, "mail\x06\x163") is None
    assert bench.client.llen(bench.keys.probation("mail\x06\x163")) == 1
    bench.paused.resume("mail")
    assert bench.driver.claim_suspect(owner, "mail\x06\x163") is not None


def test_a_registration_says_it_before_the_first_claim(bench):
    bench.paused.pause("mail", "ann")
    facts = bench.owner(register=False)
    assert bench.registry.register(facts).paused == {"mail"}


def test_another_separator_is_another_name(make_bench):
    bench: Bench = make_bench(sep=":")
    owner = bench.owner(lists=["mail", "mail:3"]).owner
    bench.push("mail:3", payload(1))
    bench.paused.pause("mail", "ann")
    assert bench.driver.claim(owner, ["mail", "mail:3"], 9).paused == {"mail", "mail:3"}
    assert make_bench().driver.claim(owner, ["mail:3"], 9).jobs, "then it is a queue itself"


@pytest.mark.parametrize("sep", [":", "\x06\x16"], ids=["colon", "default"])
def test_a_separator_in_the_name_of_a_queue_ends_it_only_before_a_priority(make_bench, sep):
    bench: Bench = make_bench(sep=sep)
    queue, other = f"mail{sep}high", f"mail{sep}5"  # 5 is no priority that has a list
    lists = ["mail", queue, f"{queue}{sep}3", other]
    owner = bench.owner(lists=lists).owner
    for name in lists:
        bench.push(name, payload(name))
    bench.paused.pause(queue, "ann")
    claims = bench.driver.claim(owner, lists, 9)
    assert claims.paused == {queue, f"{queue}{sep}3"}
    assert {claimed.job.queue_list for claimed in claims.jobs} == {"mail", other}
    with pytest.raises(BadQueue, match="is the list of one priority"):
        bench.paused.pause(f"{queue}{sep}3", "ann")
