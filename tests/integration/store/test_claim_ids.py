"""Claims have names: each transition finds its own claim, once, and no other."""

from __future__ import annotations

from time import time

import pytest

from celery_superfetch.model.job import claimed_at


def test_a_record_ends_with_its_claim_and_never_begins_without_one(bench, owner):
    bench.push("mail", b"acked", b"requeued")
    acked, back = bench.claim(owner, starts=2).jobs
    assert len(bench.recorded(owner)) == 2
    assert bench.ack(owner, acked)
    assert bench.requeue(back.job) == 1
    assert bench.recorded(owner) == []
    for late in (acked.job, back.job):
        assert not bench.ack(owner, starting=(late,))
    assert not bench.client.exists(bench.keys.private(owner.owner))


@pytest.mark.parametrize("gone", [(), (0,), (1,), (0, 1), (2,), (0, 2), (1, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("started", [0, 1, 2])
def test_an_ack_knows_whether_anything_of_it_was_there(bench, owner, gone, started):
    """One command removes the claims of acked jobs and the waiting notes of those that start."""
    bench.push("mail", b"0", b"1", b"2", b"3")
    claims = bench.claim(owner, starts=started).jobs
    for number in gone:
        assert bench.requeue(claims[number].job) == 1
    starting = [claimed.job for claimed in claims[2:]]
    before = bench.client.hlen(bench.keys.private(owner.owner))
    found = bench.ack(owner, *claims[:2], starting=starting)
    assert found == before - bench.client.hlen(bench.keys.private(owner.owner))
    left = [job for number, job in enumerate(starting, 2) if number not in gone]
    assert bench.held(owner) == left[::-1]
    assert bench.lists.held(owner.owner).running == {job.claim_id for job in left}


def test_what_runs_no_longer_is_no_record_and_is_held(bench, owner):
    bench.push("mail", b"1", b"2")
    one, two = (claimed.job for claimed in bench.claim(owner, starts=2).jobs)
    bench.run(bench.lists.put_notes_back(owner.owner, []))
    bench.run(bench.lists.put_notes_back(owner.owner, [one.claim_id, "ff:mail"]))
    assert bench.lists.held(owner.owner).running == {two.claim_id}
    assert bench.held(owner) == [two, one]


def test_two_equal_payloads_are_two_claims(bench, owner):
    same, other = bench.claimed(owner, b"same", b"same")
    assert bench.ack(owner, same)
    assert not bench.ack(owner, same), "and a repetition does not settle the other"
    assert bench.requeue(same.job) == 0
    assert bench.held(owner) == [other.job]


@pytest.mark.parametrize("runs", [True, False])
def test_what_comes_late_does_not_meet_the_next_claim_of_its_job(bench, owner, runs):
    """A network that stood still brings it. Another thread of this very process has the job by
    then, and runs it, or is about to."""
    [first] = bench.claimed(owner, b"1")
    assert bench.requeue(first.job) == 1
    [again] = bench.claim(owner, starts=int(runs)).jobs
    assert not bench.ack(owner, first, starting=(first.job,))
    assert not bench.ack(owner, starting=(first.job,))
    assert bench.requeue(first.job) == 0
    assert (bench.held(owner), bench.queue()) == ([again.job], [])
    assert bench.lists.held(owner.owner).running == ({again.job.claim_id} if runs else set())


def test_a_claim_is_named_by_its_time_and_its_queue_list(bench):
    """Later ones have greater names, and those of a process share none."""
    owner, lists = bench.owner(), ["mail", "a:b\x06\x163"]
    before = int(time())
    for name in lists:
        bench.push(name, b"1", b"2")
    jobs = [claimed.job for claimed in bench.claim(owner, lists).jobs]
    bench.push("mail", b"3")
    jobs += [claimed.job for claimed in bench.claim(owner, lists).jobs]
    assert [job.queue_list for job in jobs] == ["mail", "mail", *["a:b\x06\x163"] * 2, "mail"]
    assert bench.held(owner) == jobs[::-1], "the queue list is read from the name"
    assert all(before <= (claimed_at(job.claim_id) or 0) <= time() for job in jobs)


def test_what_is_in_flight_can_be_listed(bench):
    one, two = bench.owner(lists=["mail", "slow"]), bench.owner()
    first, second = bench.give(one, "mail", [b"1", b"2"])
    [third] = bench.give(one, "slow", [b"3"])
    bench.run_one(second)
    held = bench.lists.held(one.owner)
    assert (held.claims, held.running) == (
        [job.claim_id for job in (third, second, first)],
        {second.claim_id},
    )
    assert bench.lists.held(two.owner) == ([], frozenset())


def test_claims_are_read_as_far_as_they_have_room(bench):
    owner = bench.owner().owner
    claimed = bench.give(owner, "mail", [b"1", b"22", b"333"])
    one, two, three = (job.claim_id for job in claimed)
    names = ["ff:mail", one, two, three]
    assert bench.lists.jobs(owner, names, 100) == (claimed, 4)
    assert bench.lists.jobs(owner, names, 2) == (claimed[:2], 3), "with the one that passes it"
    assert bench.lists.jobs(owner, names, 0) == ([], 1), "some may be there no longer"
    assert bench.lists.jobs(owner, [three], 0) == (claimed[2:], 1)
    assert bench.lists.jobs(owner, [], 100) == ([], 0)


def test_what_no_claim_of_ours_wrote_is_no_reason_to_fail_and_is_told_of(bench, owner, caplog):
    """Names by somebody's hand: what names a queue list is a job, and the others stay."""
    odd = {"": b"0", "?": b"1", "no number:mail": b"2", b"\xff:mail": b"3", "??": b"4"}
    [job] = bench.give(owner, "mail", [b"ours"])
    bench.client.hset(bench.keys.private(owner.owner), mapping=odd)
    claims = bench.lists.held(owner.owner).claims
    assert claims == [job.claim_id, "no number:mail"]
    bench.driver.write_log()
    assert "fields=4): '', '?', '\ufffd:mail'. They stay there" in caplog.text, "three by name"
