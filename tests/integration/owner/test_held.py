"""Jobs that wait for their ETA lie out of the private list's way, and are lost nowhere."""

from __future__ import annotations

from celery_superfetch.cli.unregistered import register_unknown
from celery_superfetch.model.facts import Facts
from celery_superfetch.model.job import Claimed
from support.waiting import eventually
from support.workers.bench import Bench, ended_process, payload


def claim(bench: Bench, owner: Facts, *names: object) -> list[Claimed]:
    return bench.take(owner, *(payload(name) for name in names))


def aside(bench: Bench, owner: Facts) -> set[bytes]:
    return set(bench.client.hvals(bench.keys.held(owner.owner, "mail")))


def hold(bench: Bench, *claimed: Claimed) -> None:
    for one in claimed:
        bench.in_flight.set_aside(one.job)
    bench.in_flight.flush()


def test_a_job_that_waits_leaves_the_private_list_with_the_next_round_trip(
    bench: Bench, owner: Facts
) -> None:
    first, second = claim(bench, owner, 1, 2)
    bench.in_flight.set_aside(first.job)
    assert len(bench.private(owner)) == 2
    bench.in_flight.claim(owner.owner, ["mail"], 1, 1, [])
    assert bench.private(owner) == [second.job.payload]
    assert aside(bench, owner) == {first.job.payload}
    assert first.job in bench.in_flight.jobs
    assert sum(bench.lists.size(owner.owner, name) for name in owner.lists) == 2
    assert bench.registry.leave(owner, 0) == 2, "its owner does not leave"


def test_its_ack_removes_it_and_nothing_else(bench: Bench, owner: Facts) -> None:
    claimed = claim(bench, owner, 1, 2, 3)
    hold(bench, *claimed[:2])
    bench.in_flight.ack(claimed[0])
    bench.in_flight.ack(claimed[2])
    bench.in_flight.flush()
    assert bench.private(owner) == []
    assert aside(bench, owner) == {payload(2)}
    assert bench.stat("ownership_lost") == 0


def test_its_ack_finds_it_although_an_earlier_answer_waits_too_long(
    bench: Bench, owner: Facts
) -> None:
    first, second = claim(bench, owner, 1, 2)
    hold(bench, second)
    bench.in_flight.ack(first)
    bench.in_flight.post()
    eventually(lambda: bench.in_flight._line.overdue)
    bench.in_flight.ack(second)
    bench.in_flight.flush()
    assert (bench.private(owner), aside(bench, owner)) == ([], set())
    assert bench.stat("ownership_lost") == 0


def test_one_that_is_settled_before_it_was_moved_never_is(bench: Bench, owner: Facts) -> None:
    [claimed] = claim(bench, owner, 1)
    bench.in_flight.set_aside(claimed.job)
    bench.in_flight.ack(claimed)
    bench.in_flight.flush()
    assert (bench.private(owner), aside(bench, owner)) == ([], set())


def test_it_goes_back_to_its_place_in_the_queue(bench: Bench, owner: Facts) -> None:
    claimed = claim(bench, owner, 1, 2, 3)
    hold(bench, claimed[1])
    bench.push("mail", payload(4))
    bench.in_flight.requeue([one.job for one in reversed(claimed)])
    assert bench.queue() == [payload(n) for n in (1, 2, 3, 4)]
    assert aside(bench, owner) == set()


def test_a_server_that_forgot_the_script_settles_it_all_the_same(
    bench: Bench, owner: Facts
) -> None:
    """Of a restarted server another worker may have loaded the others meanwhile, and not this."""
    claimed = claim(bench, owner, 1, 2)
    hold(bench, *claimed)
    bench.client.script_flush()
    for name in ("requeue", "ack"):
        bench.client.script_load(bench.scripts._source(name))
    bench.in_flight.ack(claimed[0])
    bench.in_flight.requeue([claimed[1].job])
    bench.in_flight.flush()
    assert bench.queue() == [payload(2)]
    assert (bench.private(owner), aside(bench, owner)) == ([], set())
    assert bench.stat("ownership_lost") == 0


def test_a_server_that_forgot_how_to_move_it_does_so_before_it_can_be_claimed_again(
    bench: Bench, owner: Facts
) -> None:
    """Told so with a later answer, it would move the next claim of that job away."""
    [claimed] = claim(bench, owner, 1)
    bench.in_flight.set_aside(claimed.job)
    bench.in_flight.post()
    bench.client.script_flush()
    [other] = claim(bench, owner, 2)
    bench.in_flight.set_aside(other.job)
    bench.in_flight.post()
    bench.in_flight.requeue([other.job])
    [again] = bench.in_flight.claim(owner.owner, ["mail"], 1, 1, []).jobs
    assert (again.job.payload, aside(bench, owner)) == (payload(2), {payload(1)})
    bench.in_flight.requeue([again.job])
    assert bench.queue() == [payload(2)]


def test_its_dead_owners_jobs_are_recovered(bench: Bench) -> None:
    owner = bench.owner(ended_process())
    claimed = claim(bench, owner, *range(250))
    claimed += bench.in_flight.claim(owner.owner, ["mail"], 250, 1, []).jobs
    claimed += bench.in_flight.claim(owner.owner, ["mail"], 250, 1, []).jobs
    assert len(claimed) == 250
    hold(bench, *claimed[:220])
    assert len(aside(bench, owner)) == 220
    report = bench.reaper().reap()
    assert report.recovered == 250
    assert sorted(bench.queue()) == sorted(payload(n) for n in range(250))
    assert bench.queue()[:30] == [payload(n) for n in range(220, 250)], "who waits goes behind"
    assert (bench.private(owner), aside(bench, owner)) == ([], set())


def test_who_holds_them_and_is_not_registered_is_found(bench: Bench, owner: Facts) -> None:
    [claimed] = claim(bench, owner, 1)
    hold(bench, claimed)
    bench.client.delete(bench.keys.owners, bench.keys.facts(owner.owner))
    assert register_unknown(bench.reaper()) == 1
    assert owner.owner in bench.registry.owners()


def test_a_doubt_finds_what_a_lost_reply_left_in_either_place(bench: Bench, owner: Facts) -> None:
    """Aside in name only, and aside though nobody here knows: a replica that was promoted."""
    known, unmoved, unknown = claim(bench, owner, 1, 2, 3)
    hold(bench, known, unmoved, unknown)
    keys = bench.keys
    bench.client.hdel(keys.held(owner.owner, "mail"), unmoved.job.claim_id)
    bench.client.lpush(keys.private(owner.owner, "mail"), payload(2))
    bench.in_flight.drop(unknown.job)
    bench.client.hset(keys.held(owner.owner, "mail"), "stray", payload(4))
    assert bench.in_flight.lost_claims.reconcile(owner.owner, ["mail"]) == 2
    assert sorted(bench.queue()) == [payload(3), payload(4)]
    assert aside(bench, owner) == {payload(1)}
    assert bench.private(owner) == [payload(2)]
    for one in (known, unmoved):
        bench.in_flight.ack(one)
    bench.in_flight.flush()
    assert (bench.private(owner), aside(bench, owner)) == ([], set())
    assert bench.stat("ownership_lost") == 0


def test_the_control_without_a_look_aside_it_would_be_given_back_and_run_twice(
    bench: Bench, owner: Facts
) -> None:
    [claimed] = claim(bench, owner, 1)
    hold(bench, claimed)
    bench.client.hdel(bench.keys.held(owner.owner, "mail"), claimed.job.claim_id)
    bench.client.lpush(bench.keys.private(owner.owner, "mail"), payload(1))
    bench.in_flight.lost_claims._look_aside = lambda *_: None  # type: ignore[method-assign]
    assert bench.in_flight.lost_claims.reconcile(owner.owner, ["mail"]) == 1
    assert bench.queue() == [payload(1)], "though it is held"


def test_an_ack_walks_through_no_job_that_waits(bench: Bench, owner: Facts) -> None:
    """The control is the list as it was: an ack from the far end of 500 jobs."""
    for name in range(500):
        [one] = claim(bench, owner, name)
        bench.in_flight.set_aside(one.job)
    [runs] = claim(bench, owner, "runs")
    bench.in_flight.flush()
    assert len(bench.private(owner)) == 1
    bench.in_flight.ack(runs)
    bench.in_flight.flush()
    assert (len(bench.private(owner)), len(aside(bench, owner))) == (0, 500)
