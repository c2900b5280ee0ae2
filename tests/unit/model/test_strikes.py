"""Who is to blame, the decision on a recovery, and the value it is taken on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_superfetch.model.job import Envelope, Job, digest
from celery_superfetch.model.strikes import (
    Blame,
    Counters,
    Decision,
    Limits,
    Recovery,
    Running,
    blame,
    decide,
)

JOB = Job("web-1|7|abc", "mail", b"payload")
MINE, OTHER = "2:mail", "1:mail"
KNOWN = Envelope({"body": ""}, "shop.add", "id-1")


def limits(strikes: int | None = 3, recoveries: int = 20, stops: int | None = 50) -> Limits:
    return Limits(lambda task: strikes, recoveries, lambda task: stops)


DEFAULT = limits()


def recovery(
    envelope: Envelope = KNOWN,
    counters: Counters | None = None,
    blame: Blame = Blame.EXACT,
    limits: Limits = DEFAULT,
    is_own_loss: bool = False,
) -> Recovery:
    return Recovery.of(
        JOB,
        envelope,
        counters or Counters(),
        reason="gone",
        app_name="shop",
        blame=blame,
        limits=limits,
        is_own_loss=is_own_loss,
    )


def crashes(times: int, how: Blame, limits: Limits = DEFAULT) -> Recovery:
    """The last of so many recoveries in a row."""
    counters = Counters()
    for _ in range(times):
        last = recovery(counters=counters, blame=how, limits=limits)
        counters = Counters(
            last.strikes,
            last.recoveries,
            solo_runs=last.solo_runs,
            stops=last.stops,
            alongside=last.deaths_alongside,
        )
    return last


@pytest.mark.parametrize(
    ("running", "counters", "expected"),
    [
        (Running((MINE,)), Counters(), Blame.EXACT),
        (Running((OTHER, MINE)), Counters(), Blame.SUSPECT),
        (Running((MINE,), at_death=2), Counters(), Blame.SUSPECT),
        (Running((OTHER,)), Counters(), Blame.NONE),
        (Running(), Counters(), Blame.NONE),
        (Running((MINE,)), Counters(2, 2, solo_runs=1), Blame.EXACT),
        (Running((MINE, OTHER)), Counters(2, 2, solo_runs=1), Blame.SUSPECT),
        (Running((MINE,), not_blamed=True), Counters(), Blame.NONE),
        (Running((MINE,), not_blamed=True), Counters(2, 2, solo_runs=1), Blame.NONE),
        (Running((MINE,), not_blamed=True), Counters(0, 20), Blame.NONE),
        (Running((MINE,), not_blamed=True), Counters(0, 20, solo_runs=1), Blame.EXACT),
        (Running((MINE, OTHER), not_blamed=True), Counters(0, 20, solo_runs=1), Blame.SUSPECT),
        (Running((OTHER,), not_blamed=True), Counters(0, 20, solo_runs=1), Blame.NONE),
        (Running((MINE,), stopping=True), Counters(), Blame.STOP),
        (Running((MINE, OTHER), stopping=True), Counters(), Blame.STOP),
        (Running((MINE,), stopping=True), Counters(0, 20, solo_runs=1), Blame.STOP),
        (Running((OTHER,), stopping=True), Counters(), Blame.NONE),
        (Running((MINE,), not_blamed=True), Counters(0, 25, solo_runs=1, stops=6), Blame.NONE),
    ],
)
def test_the_death_of_an_owner_is_blamed_on_what_it_ran(running, counters, expected):
    assert blame(MINE, running, counters, limits()) is expected


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_a_job_that_always_crashes_runs_exactly_strike_limit_times(limit):
    is_own_loss = limits(limit)
    for runs in range(1, limit):
        assert decide(crashes(runs, Blame.EXACT, is_own_loss)) is Decision.RECOVER
    assert decide(crashes(limit, Blame.EXACT, is_own_loss)) is Decision.KILL


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_a_suspect_strike_is_never_the_last(limit):
    last = crashes(19, Blame.SUSPECT, limits(limit, 1000))
    assert last.strikes == limit - 1
    assert decide(last) is Decision.RECOVER
    assert last.solo_runs


def test_one_short_of_its_limit_a_job_goes_on_probation_and_stays():
    assert not crashes(1, Blame.SUSPECT).solo_runs
    assert crashes(2, Blame.SUSPECT).solo_runs
    assert crashes(2, Blame.EXACT).solo_runs
    deploy = recovery(counters=Counters(2, 2, solo_runs=1), blame=Blame.NONE)
    assert (deploy.strikes, deploy.solo_runs) == (2, 1)
    assert decide(deploy) is Decision.RECOVER


def test_a_death_in_company_makes_the_next_solitude_longer_and_kills_nobody():
    assert [crashes(times, Blame.SUSPECT).solo_runs for times in (1, 2, 3, 4)] == [0, 1, 2, 3]
    assert decide(crashes(19, Blame.SUSPECT)) is Decision.RECOVER
    known = Counters(2, 4, solo_runs=3)
    assert recovery(counters=known, blame=Blame.NONE).solo_runs == 3, "a deploy does not"
    assert decide(recovery(counters=known)) is Decision.KILL, "alone it is the last"


@pytest.mark.parametrize("how", [Blame.NONE, Blame.SUSPECT, Blame.STOP])
def test_stops_that_reached_their_limit_are_the_reason_whatever_the_last_loss_was(how):
    stopped = recovery(counters=Counters(1, 51, stops=50), blame=how)
    assert decide(stopped) is Decision.KILL
    assert stopped.why_dead.endswith("(stop_limit 50; last: gone)")


def test_a_last_strike_or_a_message_that_never_ran_has_its_own_reason():
    killer = recovery(counters=Counters(2, 52, stops=50), blame=Blame.EXACT)
    assert decide(killer) is Decision.KILL
    assert killer.why_dead == "gone"
    unread = replace(recovery(counters=Counters(0, 50, stops=50), blame=Blame.NONE), never_ran=True)
    assert unread.why_dead == "gone"


def test_twenty_deaths_alongside_others_end_a_job_unless_its_limit_is_higher():
    assert decide(crashes(20, Blame.SUSPECT)) is Decision.KILL
    assert "20 workers died" in crashes(20, Blame.SUSPECT).why_dead
    patient = limits(100, 1000)
    assert decide(crashes(99, Blame.SUSPECT, patient)) is Decision.RECOVER
    assert decide(crashes(100, Blame.SUSPECT, patient)) is Decision.KILL
    assert decide(crashes(200, Blame.SUSPECT, limits(None))) is Decision.RECOVER


@pytest.mark.parametrize(
    ("entry", "deaths", "decision"),
    [
        ({"strike": "suspect"}, 20, Decision.KILL),
        ({"strike": "suspect"}, 19, Decision.RECOVER),
        ({"strike": "", "stop": True}, 20, Decision.RECOVER),
        ({"strike": ["?"]}, 20, Decision.RECOVER),
    ],
    ids=["the last death", "not the last", "a stop since then", "unreadable"],
)
def test_a_job_that_was_recovered_at_its_limit_of_deaths_is_decided_on_as_then(
    entry, deaths, decision
):
    """An app that does not know the task recovers it; its own app decides when it claims it."""
    counters = Counters(2, deaths, ({**entry, "reason": "gone"},), alongside=deaths)
    latest = recovery(counters=counters, blame=Blame.NONE).latest()
    assert (decide(latest), latest.deaths_alongside) == (decision, deaths)


def test_a_job_that_lost_only_its_own_processes_needs_no_probation():
    """Its next loss is exact, too. Where its owner died, it may have been another job's fault."""
    is_own_loss = recovery(counters=Counters(1, 1), is_own_loss=True)
    assert (is_own_loss.strikes, is_own_loss.solo_runs) == (2, 0)
    assert recovery(counters=Counters(1, 1)).solo_runs == 1, "the owner died"
    assert recovery(counters=Counters(1, 1, deaths=1), is_own_loss=True).solo_runs == 1, (
        "it did before"
    )
    assert decide(recovery(counters=Counters(2, 2), is_own_loss=True)) is Decision.KILL


def test_stops_are_counted_apart_from_strikes_and_recoveries():
    last = crashes(49, Blame.STOP)
    assert (last.strikes, last.recoveries, last.stops, last.solo_runs) == (0, 49, 49, 0)
    assert decide(last) is Decision.RECOVER
    assert decide(crashes(50, Blame.STOP)) is Decision.KILL
    assert decide(crashes(500, Blame.STOP, limits(stops=None))) is Decision.RECOVER
    both = Counters(0, 30, stops=12)
    assert not recovery(counters=both, blame=Blame.NONE).solo_runs
    assert recovery(counters=Counters(0, 31, stops=12), blame=Blame.NONE).solo_runs


def test_many_recoveries_lead_to_probation_whatever_the_eta():
    """It may kill whoever decodes it, and would never have run."""
    ahead = KNOWN._replace(eta=4e9)
    assert not recovery(ahead, Counters(recoveries=18), Blame.NONE).solo_runs
    assert recovery(ahead, Counters(recoveries=19), Blame.NONE).solo_runs


def test_recoveries_alone_lead_to_probation_and_no_further():
    assert not crashes(19, Blame.NONE).solo_runs
    assert crashes(20, Blame.NONE).solo_runs
    assert decide(crashes(100, Blame.NONE)) is Decision.RECOVER


def test_a_task_without_a_limit_is_never_killed_and_never_held_back():
    last = crashes(100, Blame.EXACT, limits(None))
    assert (last.strikes, last.solo_runs) == (100, False)
    assert decide(last) is Decision.RECOVER


def test_the_counts_include_this_time():
    first = recovery()
    assert (first.strikes, first.recoveries) == (1, 1)
    later = recovery(counters=Counters(strikes=1, recoveries=4, history=({"at": 1},)))
    assert (later.strikes, later.recoveries, later.history) == (2, 5, ({"at": 1},))


def test_a_lower_limit_takes_no_strike_back():
    known = recovery(counters=Counters(strikes=7), blame=Blame.SUSPECT)
    assert known.strikes == 7
    assert decide(known) is Decision.RECOVER, "it was a suspect again, and no more"


def test_a_recovery_knows_its_job_by_name_and_by_digest():
    named = recovery()
    assert (named.task, named.task_id, named.parsed) == ("shop.add", "id-1", True)
    assert named.digest == digest(b"payload")
    assert not recovery(Envelope()).parsed


@pytest.mark.parametrize(
    ("strikes", "limit", "blamed", "said"),
    [
        (
            0,
            3,
            Blame.EXACT,
            "strike 1 of 3: it runs again, and is moved to the dead set at strike 3",
        ),
        (1, 3, Blame.EXACT, "strike 2 of 3: on probation"),
        (1, 3, Blame.SUSPECT, "strike 2 of 3: on probation"),
        (7, None, Blame.EXACT, "strike 8: it runs again, and its task has no strike limit"),
    ],
)
def test_a_strike_says_what_comes_next(strikes, limit, blamed, said):
    """E7. A count without its limit tells nobody how close the job is to its end."""
    found = recovery(counters=Counters(strikes, strikes), blame=blamed, limits=limits(limit))
    assert found.next_consequence.startswith(said)
