"""StalenessTracker is watched, not computed. Time is an argument, so no clock is touched."""

from __future__ import annotations

from celery_superfetch.model.staleness import StalenessTracker

OWNER, SCORE = "a|1|x", 1_000_000
GAP = 11.0  # what a process with a heartbeat of 5 s allows itself


def watched(*looks: tuple[float, dict[str, int]]) -> StalenessTracker:
    staleness = StalenessTracker(longest_gap=GAP)
    for now, quiet in looks:
        staleness.observe(quiet, now)
    return staleness


def test_a_fresh_observer_knows_nothing():
    staleness = StalenessTracker(longest_gap=GAP)
    assert staleness.staleness_of(OWNER, SCORE, 100.0) is None
    assert staleness.stale_owners(100.0, 0.0) == []


def test_one_look_shows_no_silence_however_old_the_score_is():
    staleness = watched((0.0, {OWNER: 1}))
    assert staleness.staleness_of(OWNER, 1, 10.0) == 0.0
    assert staleness.stale_owners(10.0, 0.0) == []


def test_silence_begins_with_the_look_before_the_first_quiet_one():
    staleness = watched((0.0, {}), (5.0, {OWNER: SCORE}), (10.0, {OWNER: SCORE}))
    assert staleness.staleness_of(OWNER, SCORE, 10.0) == 10.0
    assert staleness.staleness_of(OWNER, SCORE, 12.0) == 12.0


def test_an_owner_that_is_heard_again_starts_from_nothing():
    staleness = watched((0.0, {}), (5.0, {OWNER: SCORE}), (10.0, {}), (15.0, {OWNER: SCORE + 7}))
    assert staleness.staleness_of(OWNER, SCORE + 7, 15.0) == 5.0


def test_one_who_is_not_quiet_is_heard():
    staleness = watched((0.0, {}), (5.0, {OWNER: SCORE}))
    assert staleness.staleness_of("b|2|y", SCORE, 9.0) == 0.0


def test_a_score_that_changed_after_the_look_is_a_heartbeat():
    """The verdict reads the scores anew: the newest of them counts, not what was watched."""
    staleness = watched((0.0, {}), (5.0, {OWNER: SCORE}), (10.0, {OWNER: SCORE}))
    assert staleness.staleness_of(OWNER, SCORE, 10.0) == 10.0
    assert staleness.staleness_of(OWNER, SCORE + 1, 10.0) == 0.0


def test_a_failed_look_convicts_nobody():
    staleness = watched((0.0, {}), (5.0, {OWNER: SCORE}), (10.0, {OWNER: SCORE}))
    staleness.interrupt()
    assert staleness.staleness_of(OWNER, SCORE, 11.0) is None
    assert staleness.stale_owners(11.0, 0.0) == []
    staleness.observe({OWNER: SCORE}, 15.0)
    assert staleness.staleness_of(OWNER, SCORE, 15.0) == 0.0
    staleness.observe({OWNER: SCORE}, 20.0)
    assert staleness.staleness_of(OWNER, SCORE, 20.0) == 5.0, "counted from the first look after it"


def test_a_frozen_observer_convicts_nobody():
    """It may have been cut off for as long as it was not there to look."""
    staleness = watched((0.0, {}), (5.0, {OWNER: SCORE}))
    assert staleness.staleness_of(OWNER, SCORE, 3600.0) is None
    assert staleness.stale_owners(3600.0, 10.0) == []
    staleness.observe({OWNER: SCORE}, 3600.0)
    assert staleness.staleness_of(OWNER, SCORE, 3600.0) == 0.0


def test_the_longest_gap_itself_is_still_in_time():
    staleness = watched((0.0, {}), (GAP, {OWNER: SCORE}))
    assert staleness.staleness_of(OWNER, SCORE, 2 * GAP) == 2 * GAP
    assert staleness.staleness_of(OWNER, SCORE, 2 * GAP + 0.01) is None


def test_a_server_clock_set_forward_convicts_nobody():
    """For one look all seem silent for an hour; by our clock it was one interval."""
    hour = 3_600_000
    staleness = watched((0.0, {}), (5.0, {OWNER: SCORE}))
    assert staleness.staleness_of(OWNER, SCORE, 5.0) == 5.0
    staleness.observe({}, 10.0)  # it wrote an hour ahead, as everybody does now
    assert staleness.staleness_of(OWNER, SCORE + hour, 10.0) == 0.0


def test_a_server_clock_set_back_convicts_nobody():
    """Scores from the future come with the quiet ones; each heartbeat still changes them."""
    hour = 3_600_000
    staleness = watched((0.0, {}))
    for look in range(1, 20):
        score = SCORE + hour if look == 1 else SCORE + look * 5000
        staleness.observe({OWNER: score}, look * 5.0)
        silent = staleness.staleness_of(OWNER, score, look * 5.0)
        assert silent is not None
        assert silent <= 5.0
    assert staleness.stale_owners(95.0, 10.0) == []


def test_a_dead_owner_with_a_score_from_the_future_is_found_all_the_same():
    future = SCORE + 3_600_000
    staleness = watched((0.0, {}), *((5.0 * look, {OWNER: future}) for look in range(1, 13)))
    assert staleness.staleness_of(OWNER, future, 60.0) == 60.0


def test_suspects_are_those_who_stood_still_for_long_enough():
    staleness = watched((0.0, {}), (5.0, {OWNER: SCORE}), (10.0, {OWNER: SCORE, "b|2|y": SCORE}))
    assert staleness.stale_owners(10.0, 10.0) == [OWNER]
    assert sorted(staleness.stale_owners(10.0, 5.0)) == [OWNER, "b|2|y"]
    assert staleness.stale_owners(10.0, 10.1) == []


def test_one_who_left_the_registry_is_no_suspect():
    staleness = watched((0.0, {}), (5.0, {OWNER: SCORE}), (10.0, {}))
    assert staleness.stale_owners(20.0, 0.0) == []
