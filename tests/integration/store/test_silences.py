"""The watch of one-shot passes. The server's clock is an argument here, so it can jump."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_superfetch.store.silences import Silences
from support.workers.bench import Bench

OWNER, RUN = "a|1|x", "run-1"
T0 = 1_700_000_000_000
INTERVAL, HEARTBEAT = 10.0, 5.0  # reap_interval, heartbeat_interval
#: Until whoever lives is heard again: an interval, and one retry.
WAIT = HEARTBEAT + 1.0


@pytest.fixture
def suspects(make_bench: Callable[..., Bench]) -> Silences:
    return make_bench(reap_interval=INTERVAL, heartbeat_interval=HEARTBEAT).silences


def look(
    suspects: Silences, at: float, score: int = T0, run: str = RUN, keep: bool = True
) -> float:
    """One pass `at` seconds after the first; the silence of `OWNER` it knows of."""
    now = T0 + int(at * 1000)
    return suspects.look({OWNER: score}, {OWNER: HEARTBEAT}, now, run, keep=keep)[OWNER]


def test_the_first_pass_knows_no_silence(suspects: Silences) -> None:
    assert look(suspects, 3600, score=1) == 0.0


def test_passes_add_up_and_the_latest_gap_waits_for_the_next_pass(suspects: Silences) -> None:
    assert [look(suspects, at) for at in (0, 10, 20, 30)] == [0.0, 0.0, 10.0, 20.0]


def test_passes_that_come_close_to_each_other_count_no_gap(suspects: Silences) -> None:
    """D1. After an outage of everybody, CLI and beat, or two commands, a second apart."""
    look(suspects, 0)
    after = [20 + second for second in range(6)]
    assert [look(suspects, at) for at in after] == [0.0] * 6
    assert look(suspects, 20 + WAIT) == 20.0, "whoever lives would have been heard by now"


def test_passes_that_come_close_to_each_other_add_up_all_the_same(suspects: Silences) -> None:
    """Ten hosts that run one each, every ten seconds."""
    assert [look(suspects, at) for at in range(3 * int(WAIT) + 1)][:: int(WAIT)] == [0, 0, 6, 12]


def test_each_owner_is_given_its_own_time_to_be_heard(suspects: Silences) -> None:
    scores, intervals = {OWNER: T0, "b|2|y": T0}, {OWNER: HEARTBEAT, "b|2|y": 30.0}
    found = [
        suspects.look(scores, intervals, T0 + at * 1000, RUN) for at in (0, 10, 20, 30, 31, 62)
    ]
    assert [silent[OWNER] for silent in found] == [0, 0, 10, 20, 20, 30]
    assert [silent["b|2|y"] for silent in found] == [0, 0, 0, 0, 0, 31]


def test_who_is_not_looked_at_keeps_what_is_known(suspects: Silences) -> None:
    look(suspects, 0)
    look(suspects, 10)
    scores = {OWNER: T0, "b|2|y": T0}
    assert suspects.look(scores, {"b|2|y": HEARTBEAT}, T0 + 12_000, RUN) == {"b|2|y": 0.0}
    assert look(suspects, 20) == 10.0


def test_a_heartbeat_starts_it_anew(suspects: Silences) -> None:
    look(suspects, 0)
    look(suspects, 10)
    assert look(suspects, 20) == 10.0
    assert look(suspects, 30, score=T0 + 25_000) == 0.0
    assert look(suspects, 40, score=T0 + 25_000) == 0.0
    assert look(suspects, 50, score=T0 + 25_000) == 10.0


def test_an_outage_between_two_passes_is_nothing_for_now(suspects: Silences) -> None:
    """Nobody could be heard meanwhile; whoever lives is by the next pass."""
    look(suspects, 0)
    assert look(suspects, 20) == 0.0
    assert look(suspects, 26) == 20.0


def test_a_night_without_passes_adds_two_intervals_at_most(suspects: Silences) -> None:
    look(suspects, 0)
    assert look(suspects, 8 * 3600) == 0.0
    assert look(suspects, 8 * 3600 + WAIT) == 2 * INTERVAL


def test_passes_that_are_meant_to_come_often_lose_nothing(make_bench: Callable[..., Bench]) -> None:
    often = make_bench(reap_interval=0.5, heartbeat_interval=HEARTBEAT).silences
    assert [look(often, at / 2) for at in range(40)][::12] == [0.0, 0.0, 6.0, 12.0]


def test_a_clock_set_forward_adds_two_intervals_at_most(suspects: Silences) -> None:
    year = 365 * 86400
    look(suspects, 0)
    look(suspects, 10)
    assert look(suspects, 10 + year) == 10.0
    assert look(suspects, 10 + year) == 10.0
    assert look(suspects, 20 + year) == 10.0 + 2 * INTERVAL


def test_a_clock_set_back_adds_nothing_and_takes_nothing(suspects: Silences) -> None:
    look(suspects, 0)
    look(suspects, 10)
    assert look(suspects, 20) == 10.0
    assert look(suspects, -3600) == 10.0
    assert look(suspects, -3596) == 10.0
    assert look(suspects, -3590) == 20.0


def test_another_run_of_the_server_starts_it_anew(suspects: Silences) -> None:
    """A failover: the new primary may lack the latest heartbeats."""
    look(suspects, 0)
    look(suspects, 10)
    assert look(suspects, 20, run="run-2") == 0.0
    assert look(suspects, 30, run="run-2") == 0.0
    assert look(suspects, 40, run="run-2") == 10.0


def test_a_dry_run_reads_and_writes_nothing(suspects: Silences) -> None:
    look(suspects, 0)
    look(suspects, 10)
    before = suspects.client.hgetall(suspects.keys.silences)
    assert look(suspects, 20, keep=False) == 10.0
    assert suspects.client.hgetall(suspects.keys.silences) == before
    assert look(suspects, 20) == 10.0


def test_rows_leave_with_their_owners(suspects: Silences) -> None:
    look(suspects, 0)
    suspects.look({"b|2|y": T0}, {"b|2|y": HEARTBEAT}, T0, RUN)
    rows = suspects.client.hgetall(suspects.keys.silences)
    assert set(rows) == {b"b|2|y"}
    suspects.look({}, {}, T0, RUN)
    assert not suspects.client.exists(suspects.keys.silences)


@pytest.mark.parametrize(
    "row", [b"{}", b"no JSON", b"[1]", b"null", b"\xff", b"[1,2,3,4,Infinity]"], ids=repr
)
def test_a_broken_row_counts_as_none(suspects: Silences, row: bytes) -> None:
    """One of another version must not stop every pass from here on."""
    suspects.client.hset(suspects.keys.silences, OWNER, row)
    assert [look(suspects, at) for at in (0, 10, 20)] == [0.0, 0.0, 10.0]
