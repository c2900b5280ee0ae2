"""Claims, acks and requeues on private lists."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from celery_superfetch.inspector import Inspector
from celery_superfetch.model.job import Claimed, Counters, Job, digest
from celery_superfetch.model.step import Claim
from celery_superfetch.store.private_lists import (
    CLAIM_MAX_BYTES,
    LANDINGS_PER_SCRIPT,
    STEPS,
    Claims,
)
from support.servers.commands import calls
from support.workers.bench import payload

MB = 1024 * 1024


def names(claims: Claims) -> list[bytes]:
    return [claimed.job.payload for claimed in claims.jobs]


def test_a_claim_takes_the_oldest_jobs_first_and_no_more_than_asked(bench, owner):
    bench.push("mail", b"1", b"2", b"3", b"4")
    claims = bench.claim(owner, most=3)
    assert claims.registered
    assert names(claims) == [b"1", b"2", b"3"]
    assert bench.queue() == [b"4"]
    assert bench.private(owner) == [b"3", b"2", b"1"], "newest first"
    assert not any(claimed.counters for claimed in claims.jobs)


def test_a_claim_of_many_asks_for_several_at_once(bench, owner):
    """As many as have room if all are as large as the largest yet: a command costs the server more
    than a small job."""
    bench.push("mail", *map(payload, range(17)))
    bench.client.config_resetstat()
    assert len(bench.claim(owner, most=17).jobs) == 17
    assert calls(bench.client, "rpop") == 3, "one, eight and eight"


def test_a_claim_of_nothing_is_empty(bench, owner):
    assert bench.claim(owner) == Claims(registered=True, jobs=[], errors=[])
    bench.push("mail", b"1")
    assert names(bench.claim(owner, most=0)) == []
    assert bench.queue() == [b"1"]


def test_lists_are_drained_in_the_order_given(bench, owner):
    bench.push("mail\x06\x163", b"later")
    bench.push("mail", b"urgent 1", b"urgent 2")
    lists = ["mail", "mail\x06\x163"]
    assert names(bench.claim(owner, lists)) == [b"urgent 1", b"urgent 2", b"later"]
    assert bench.private(owner, "mail\x06\x163") == [b"later"]


def test_equal_queues_are_served_one_job_each_in_turn(bench, owner):
    for queue in ("a", "b", "c"):
        bench.push(queue, *(f"{queue}{n}".encode() for n in range(3)))
    assert names(bench.claim(owner, ["a", "b", "c"], most=7, turn=3)) == [
        b"a0", b"b0", b"c0", b"a1", b"b1", b"c1", b"a2",
    ]  # fmt: skip


def test_a_deep_queue_starves_no_equal_one_and_a_dry_one_costs_nothing(bench, owner):
    bench.push("deep", *(f"d{n}".encode() for n in range(9)))
    bench.push("small", b"s0")
    claims = bench.claim(owner, ["deep", "dry", "small"], most=5, turn=3)
    assert names(claims) == [b"d0", b"s0", b"d1", b"d2", b"d3"]


def test_turns_go_priority_by_priority(bench, owner):
    """Two queues, two steps: all urgent jobs of both before any later one of either."""
    lists = ["a", "b", "a9", "b9"]
    for queue in lists:
        bench.push(queue, f"{queue}-1".encode(), f"{queue}-2".encode())
    assert names(bench.claim(owner, lists, turn=2)) == [
        b"a-1", b"b-1", b"a-2", b"b-2", b"a9-1", b"b9-1", b"a9-2", b"b9-2",
    ]  # fmt: skip


def test_lists_that_are_no_whole_turn_are_served_as_well(bench, owner):
    for count in (1, 2, 4, 5, 6):
        lists = list("abcdef")[:count]
        for queue in lists:
            bench.push(queue, queue.encode())
        claims = bench.claim(owner, lists, turn=3)
        assert (names(claims), claims.errors) == ([queue.encode() for queue in lists], [])


def test_what_cannot_be_claimed_stays_in_its_own_list(bench, owner):
    bench.client.set(bench.keys.private(owner.owner), "a text")
    landed, lists = b"landed", ["a", "b", "c"]
    bench.land(owner, "b", landed)
    for queue in lists:
        bench.push(queue, f"{queue}1".encode(), f"{queue}2".encode())
    for turn in (1, 3):
        call = bench.lists.claim_call(owner.owner, lists, 9, turn, ["b"], 0)
        [error] = bench.scripts.run_all([call], errors=True)
        assert "WRONGTYPE" in str(error)
        assert bench.landed(owner, "b") == [landed]
        for queue in lists:
            assert bench.queue(queue) == [f"{queue}1".encode(), f"{queue}2".encode()]


def test_each_list_that_cannot_be_read_is_named_and_the_others_are_claimed(bench, owner):
    for name in ("a", "c"):
        bench.client.set(name, "a text")
    bench.push("b", b"1")
    claims = bench.claim(owner, ["a", "b", "c"])
    assert names(claims) == [b"1"]
    assert [name for name, _ in claims.errors] == ["a", "c"]
    assert all(why.startswith("WRONGTYPE") for _, why in claims.errors)


def test_all_of_one_list_go_back_and_those_that_were_there_are_counted(bench, owner):
    one, two, three = bench.give(owner, "mail", [b"1", b"2", b"3"])
    bench.push("mail", b"4")
    gone = two._replace(claim_id="ff:mail")
    assert bench.lists.requeue_all([three, gone, one], 60_000) == 2
    assert bench.queue() == [b"1", b"3", b"4"]
    assert 0 < bench.client.pttl("mail") <= 60_000
    assert bench.private(owner) == [b"2"]


def test_an_owner_without_a_record_is_shown_with_the_key_of_its_jobs(bench):
    bench.give("vm|1|aa", "mail", [b"1", b"2"])
    inspector = Inspector(bench.database)
    assert inspector.orphans() == {"vm|1|aa"}
    key, count, _ = inspector.unregistered("vm|1|aa")
    assert (bench.client.hlen(key), count) == (4, 2), "each with its waiting note"


def test_a_claim_is_bounded_in_bytes(bench, owner):
    big = [bytes([n]) * (CLAIM_MAX_BYTES // 2 + 1) for n in range(4)]
    bench.push("mail", *big)
    assert names(bench.claim(owner, most=4)) == big[:2]
    assert names(bench.claim(owner, most=4)) == big[2:]


def test_a_claim_goes_on_while_a_byte_is_left(bench, owner):
    """From one list, and from several in turn."""
    half, less = b"x" * (CLAIM_MAX_BYTES // 2), b"y" * (CLAIM_MAX_BYTES // 2 - 1)
    for turn in (1, 3):
        lists = ["a", "b", "c"][:turn]
        for sizes, count in (((half, half), 2), ((half, less), 3)):
            for number, raw in enumerate((*sizes, b"last", b"more")):
                bench.push(lists[number % turn], raw)
            assert len(bench.claim(owner, lists, most=9, turn=turn).jobs) == count
            bench.client.delete(*lists)


def test_one_job_above_the_bound_can_be_claimed(bench, owner):
    huge = b"x" * (CLAIM_MAX_BYTES + MB)
    bench.push("mail", huge, b"small")
    assert names(bench.claim(owner)) == [huge]
    assert names(bench.claim(owner)) == [b"small"]


def test_an_owner_that_nobody_knows_claims_nothing(bench):
    bench.push("mail", b"1")
    stranger = bench.owner(register=False)
    assert bench.claim(stranger) == Claims(registered=False)
    assert bench.queue() == [b"1"]
    assert bench.key_names() == {"mail"}


def test_a_reaped_owner_claims_nothing(bench, owner):
    bench.mark(owner)
    bench.land(owner, "mail", b"landed")
    bench.push("mail", b"1")
    assert not bench.claim(owner, landed=["mail"], starts=1).registered
    assert (bench.queue(), bench.landed(owner), bench.held(owner)) == ([b"1"], [b"landed"], [])


def test_what_came_alone_is_named_by_one_look(bench, owner):
    """It is in a list of its own, and the queues were found dry."""
    used: dict[str, dict[str, int]] = {}
    for name, turn in (("alone", 0), ("control", 1)):
        bench.land(owner, "mail", name.encode())
        bench.client.config_resetstat()
        assert names(bench.claim(owner, turn=turn, landed=["mail"])) == [name.encode()]
        asked = ("exists", "zscore", "rpop", "hset", "hget", "hmget", "lrange", "lpop")
        used[name] = {c: count for c in asked if (count := calls(bench.client, c))}
    assert used["alone"] == {"exists": 1, "zscore": 1, "rpop": 1, "hset": 1}
    assert used["control"] == {**used["alone"], "rpop": 2}


def test_no_landed_job_is_left_that_no_claim_will_name(bench, owner):
    """Two channels of one owner wait on the same lists. A read's job is named by the next claim of
    that read's channel, which may take another one of the same list. In every order of three reads
    and the claims: what lies in a landing list is as much as claims will still name, or less."""
    lists, channels = ("a", "b"), (0, 1)
    reads = [*product(channels, lists)]
    for landings, claimers in product(product(reads, repeat=3), permutations(channels)):
        landed: dict[int, list[str]] = {0: [], 1: []}
        for number, (channel, queue_list) in enumerate(landings):
            bench.land(owner, queue_list, f"{queue_list}{number}".encode())
            landed[channel].append(queue_list)
        claimed: list[bytes] = []
        for channel in claimers:
            named = landed.pop(channel)
            order = list(dict.fromkeys(named))
            claimed += names(bench.claim(owner, order, len(named), turn=0, landed=named))
            for queue_list in lists:
                left = bench.landed(owner, queue_list)
                to_come = sum(rest.count(queue_list) for rest in landed.values())
                assert len(left) <= to_come, (landings, claimers, left)
        assert len(set(claimed)) == 3, (landings, claimers)


def test_each_landing_list_gives_a_job_however_few_are_asked_for(bench, owner):
    bench.land(owner, "a", b"a1", b"a2")
    bench.land(owner, "b", b"b1")
    assert names(bench.claim(owner, ["a", "b"], 0, turn=0, landed=["a", "b"])) == [b"a1", b"b1"]
    bench.push("a", b"a3")
    bench.claim(owner, ["a"], most=10)
    assert len(bench.held(owner)) == 3, "no claim id was used twice"


def test_a_job_that_was_delivered_before_is_marked(bench, owner):
    [first] = bench.claimed(owner, b"1")
    assert not first.counters
    bench.requeue(first.job)
    bench.push("mail", b"2")
    again, other = bench.claim(owner).jobs
    known = Counters(requeues=1, token=first.token, first_claim=first.token)
    assert (again.job.payload, again.counters) == (b"1", known)
    assert again.token > first.token
    assert (other.job.payload, other.counters) == (b"2", None)
    assert (bool(again.counters), bool(other.counters)) == (True, False)
    assert bench.ack(owner, again)
    assert not bench.client.exists(bench.keys.history(digest(b"1"))), "until its ack"


def test_a_key_of_another_type_is_reported_and_the_others_are_served(bench, owner):
    bench.client.hset("broken", "a", 1)
    bench.push("mail", b"1")
    for turn in (1, 3):
        bench.push("mail", b"2")
        claims = bench.claim(owner, ["broken", "mail", "empty"], turn=turn, starts=1)
        assert claims.jobs
        assert [name for name, _ in claims.errors] == ["broken"]
        assert claims.started == 1
        assert "WRONGTYPE" in claims.errors[0][1]
    assert bench.client.hgetall("broken") == {b"a": b"1"}, "and left as it was"


def test_payloads_are_bytes(bench, owner):
    odd = [b"", b"\x00\xff\xfe", b"\r\n", "ö".encode(), b"-1", b'{"a": []}']
    bench.push("mail", *odd)
    claims = bench.claim(owner)
    assert names(claims) == odd
    assert bench.ack(owner, *claims.jobs)
    assert bench.private(owner) == []


@pytest.mark.parametrize("counters", [None, Counters(strikes=1)], ids=["plain", "counted"])
def test_an_ack_settles_each_job_once_and_says_whether_any_was_there(bench, owner, counters):
    one, two = (c._replace(counters=counters) for c in bench.claimed(owner, b"1", b"2"))
    unknown = [one._replace(job=one.job._replace(claim_id=id)) for id in ("", "r", "ff:mail")]
    assert not bench.ack(owner, *unknown)
    assert bench.held(owner) == [two.job, one.job]
    assert bench.ack(owner, two, *unknown, one)
    assert bench.held(owner) == []
    assert not bench.ack(owner, one)


def test_an_ack_of_jobs_with_histories_counts_those_that_were_there(bench, owner):
    waiting, running, gone = (claimed.job for claimed in bench.claimed(owner, b"1", b"2", b"3"))
    histories = [bench.keys.history(digest(job.payload)) for job in (waiting, running, gone)]
    for key in histories:
        bench.client.hset(key, "strikes", 1)
    bench.run_one(running)
    bench.requeue(gone)
    assert bench.run(bench.lists.settle_counted(owner.owner, [waiting, running, gone])) == 2
    assert [bench.client.exists(key) for key in histories] == [0, 0, 1]


def test_acks_of_all_kinds_and_a_start_go_together(bench, owner):
    first, plain, following = bench.claimed(owner, b"1", b"2", b"3")
    counters = [bench.keys.history(digest(raw)) for raw in (b"1", b"9")]
    for key in counters:
        bench.client.hset(key, "strikes", 1)
    known = Claimed(first.job, Counters(strikes=1))
    gone = Claimed(Job(owner.owner, "mail", b"9", "ff:mail"), Counters(strikes=1))
    assert bench.ack(owner, gone, known, plain, starting=(following.job,))
    assert bench.held(owner) == [following.job]
    assert [bench.client.exists(key) for key in counters] == [0, 1]
    assert bench.recorded(owner) == [digest(b"3")]


def test_an_ack_that_finds_nothing_clears_no_counters(bench):
    """The job is somebody else's by now, and so is its history."""
    counters = bench.keys.history(digest(b"1"))
    bench.client.hset(counters, "strikes", 2)
    gone = Claimed(Job("h|1|n", "mail", b"1", "1:mail"), Counters(strikes=2))
    assert not bench.ack(bench.owner(), gone)
    assert bench.client.hgetall(counters) == {b"strikes": b"2"}


def test_an_ack_acts_on_its_own_owners_list_alone(bench):
    """kombu's delivery tag survives a redelivery; in stock a late ack settles the second copy."""
    late, owner = bench.owner(), bench.owner()
    [claimed] = bench.claimed(owner, payload(1))
    assert not bench.ack(late, claimed)
    assert bench.private(owner) == [payload(1)]


def test_requeued_to_the_front_jobs_keep_their_old_order(bench, owner):
    jobs = [claimed.job for claimed in bench.claimed(owner, *(b"%d" % n for n in range(250)))]
    bench.push("mail", b"backlog")
    for at in range(0, 250, 100):
        newest_first = jobs[::-1][at : at + 100]
        assert bench.requeue(*newest_first) == len(newest_first)
    assert bench.queue() == [*(b"%d" % n for n in range(250)), b"backlog"]
    assert bench.private(owner) == []


def test_requeued_to_the_back_a_job_waits_its_turn(bench, owner):
    [claimed] = bench.claimed(owner, b"1")
    bench.push("mail", b"2", b"3")
    bench.requeue(claimed.job, where="back")
    assert bench.queue() == [b"2", b"3", b"1"]


def test_a_requeue_is_never_counted_against_the_job(bench, owner):
    [claimed] = bench.claimed(owner, b"1")
    bench.requeue(claimed.job)
    counters = bench.counters(b"1")
    assert (counters.strikes, counters.recoveries) == (0, 0), "nobody has noted a strike"
    assert 0 < bench.client.ttl(bench.keys.history(digest(b"1"))) <= 72 * 3600
    assert bench.stat("requeued") == 1


def test_what_is_no_longer_there_is_not_requeued(bench, owner):
    [claimed] = bench.claimed(owner, b"1")
    gone = claimed.job._replace(claim_id="ff:mail")
    assert bench.requeue(gone, claimed.job) == 1
    assert bench.requeue(claimed.job) == 0
    assert bench.queue() == [b"1"]
    [again] = bench.claim(owner).jobs
    bench.client.delete(bench.keys.has_history)
    assert bench.requeue(gone) == 0
    assert not bench.client.exists(bench.keys.has_history), "no job has counters by that"
    assert bench.requeue(again.job, again.job) == 1, "named twice it goes once"
    assert bench.queue() == [b"1"]


def test_a_requeue_renews_the_expiry_of_its_queue(bench, owner):
    [claimed] = bench.claimed(owner, b"1")
    bench.requeue(claimed.job, expires=60_000)
    assert 0 < bench.client.pttl("mail") <= 60_000
    [again] = bench.claim(owner).jobs
    bench.requeue(again.job)
    assert bench.client.pttl("mail") == -1, "and without one it lives for ever"
    [again] = bench.claim(owner).jobs
    bench.push("mail", b"2")
    bench.client.hset(bench.keys.history(digest(b"1")), "solo_runs", 1)
    bench.requeue(again.job, expires=60_000)
    assert bench.client.pttl("mail") == -1, "what goes on probation is no use of the queue"
    assert bench.client.smembers(bench.keys.on_probation) == {b"mail"}


def test_a_step_is_published_once_and_only_while_its_claim_lasts(bench, owner):
    """The script says which it was."""
    [claimed] = bench.claimed(owner, b"1")
    bench.push("mail", b"2")
    claim = Claim("here", bench.lists.key_of(claimed.job), claimed.job.claim_id, claimed.token)
    lists = ["mail", "mail\x06\x163"]
    bench.push(lists[1], b"urgent")
    assert bench.lists.publish_step("one:0", "next", lists, 60_000, "", claim) == 1
    assert bench.queue() == [b"2", b"next"], "behind what waits"
    assert b"!" not in bench.client.hget(claim.private, STEPS + claim.id), "its run goes on"
    for name in lists:
        assert 0 < bench.client.pttl(name) <= 60_000
    assert bench.lists.publish_step("one:0", "next", ["mail"], 0, "", claim) == 0
    bench.requeue(claimed.job)
    claimed = bench.claim(owner, most=1).jobs[0]
    claim = claim._replace(id=claimed.job.claim_id)
    assert bench.lists.publish_step("one:0", "next", ["mail"], 0, "", claim) == 0, (
        "by an earlier run"
    )
    bench.ack(owner, claimed)
    assert bench.lists.publish_step("two:0", "next", ["mail"], 0, "", claim) == -1
    assert bench.queue() == [b"2", b"next"]


def test_a_steps_note_is_as_long_for_a_large_group_as_for_a_small_one(bench, owner):
    """Its numbers are a range; one that an earlier run has left out is a second."""
    [claimed] = bench.claimed(owner, b"1")
    claim = Claim("here", bench.lists.key_of(claimed.job), claimed.job.claim_id, claimed.token)

    def publish(name: str, *, is_over: bool = False, earlier: str = "") -> int:
        return bench.lists.publish_step(name, "next", ["next"], 0, earlier, claim, is_over)

    assert [publish(f"aa:{n}") for n in (*range(8, 12), *range(300))] == [1] * 4 + [
        n not in range(8, 12) for n in range(300)
    ]
    assert [publish(f"bb:{n}") for n in (7, 7, 8)] == [1, 0, 1]
    assert publish("aa:0", is_over=True) == 0
    assert publish("cc:1", is_over=True) == 1
    assert publish("dd:1", earlier="dd:0-4;") == 0
    note = bench.client.hget(claim.private, STEPS + claim.id).decode()
    assert note.count("aa:") <= 3
    assert note.endswith("!cc:1-1;")
    assert note.count("!") == 1
    assert len(bench.queue("next")) == 300 + 2 + 1
    bench.ack(owner, claimed)
    assert not bench.client.exists(claim.private), "the note goes with the ack"


def test_a_requeue_to_a_key_of_another_type_moves_nothing(bench, owner):
    [claimed] = bench.claimed(owner, b"1")
    bench.client.set("mail", "a text")
    [reply] = bench.scripts.run_all([bench.lists.requeue([claimed.job], "front", 0)], errors=True)
    assert "WRONGTYPE" in str(reply)
    assert bench.private(owner) == [b"1"]
    assert bench.counters(b"1").history == ()
    assert not bench.client.exists(bench.keys.has_history)


def test_what_landed_from_thousands_of_lists_goes_back_by_few_scripts(bench):
    """One script for all of them kept other clients waiting as long as there were lists."""
    names = [f"queue-{number}" for number in range(2 * LANDINGS_PER_SCRIPT + 7)]
    owner = bench.owner(lists=names)
    landed = [names[0], names[LANDINGS_PER_SCRIPT], names[-1]]
    for name in landed:
        bench.land(owner, name, payload(name))
    before = calls(bench.client, "evalsha")
    assert bench.lists.return_landed(owner.owner, owner.lists) == 3
    assert calls(bench.client, "evalsha") - before == 3
    assert [bench.queue(name) for name in landed] == [[payload(name)] for name in landed]
