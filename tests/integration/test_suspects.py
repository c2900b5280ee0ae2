"""The watch of one-shot passes. The server's clock is an argument here, so it can jump."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_superfetch.suspects import Suspects
from parts.bench import Bench

OWNER, RUN = "a|1|x", "run-1"
T0 = 1_700_000_000_000
INTERVAL, HEARTBEAT = 10.0, 5.0  # reap_interval, heartbeat_interval
HEARTBEAT = 5.0  # heartbeat_interval


@pytest.fixture
def suspects(make_bench: Callable[..., Bench]) -> Suspects:
    return make_bench(reap_interval=INTERVAL, heartbeat_interval=HEARTBEAT).suspects


def look(
    suspects: Suspects, at: float, score: int = T0, run: str = RUN, keep: bool = True
) -> float:
    """One pass `at` seconds after the first; the silence of `OWNER` it knows of."""
    return suspects.look({OWNER: score}, T0 + int(at * 1000), run, keep=keep)[OWNER]


def test_the_first_pass_knows_no_silence(suspects: Suspects) -> None:
    assert look(suspects, 3600, score=1) == 0.0


def test_passes_add_up_and_the_latest_gap_counts_for_one_heartbeat(suspects: Suspects) -> None:
    assert [look(suspects, at) for at in (0, 10, 20, 23)] == [0.0, 5.0, 15.0, 23.0]


def test_a_heartbeat_starts_it_anew(suspects: Suspects) -> None:
    look(suspects, 0)
    assert look(suspects, 10) == 5.0
    assert look(suspects, 20, score=T0 + 15_000) == 0.0
    assert look(suspects, 30, score=T0 + 15_000) == 5.0


def test_an_outage_between_two_passes_is_one_heartbeat_for_now(suspects: Suspects) -> None:
    """Nobody could be heard meanwhile; whoever lives is by the next pass."""
    look(suspects, 0)
    assert look(suspects, 20) == HEARTBEAT
    assert look(suspects, 25) == 20.0 + HEARTBEAT


def test_a_night_without_passes_adds_two_intervals_at_most(suspects: Suspects) -> None:
    look(suspects, 0)
    assert look(suspects, 8 * 3600) == HEARTBEAT
    assert look(suspects, 8 * 3600) == 2 * INTERVAL


def test_a_clock_set_forward_adds_two_intervals_at_most(suspects: Suspects) -> None:
    year = 365 * 86400
    look(suspects, 0)
    look(suspects, 10)
    assert look(suspects, 10 + year) == 10.0 + HEARTBEAT
    assert look(suspects, 10 + year) == 10.0 + 2 * INTERVAL


def test_a_clock_set_back_adds_nothing_and_takes_nothing(suspects: Suspects) -> None:
    look(suspects, 0)
    look(suspects, 10)
    assert look(suspects, -3600) == 10.0
    assert look(suspects, -3596) == 14.0


def test_another_run_of_the_server_starts_it_anew(suspects: Suspects) -> None:
    """A failover: the new primary may lack the latest heartbeats."""
    look(suspects, 0)
    look(suspects, 10)
    assert look(suspects, 20, run="run-2") == 0.0
    assert look(suspects, 30, run="run-2") == 5.0


def test_a_dry_run_reads_and_writes_nothing(suspects: Suspects) -> None:
    look(suspects, 0)
    before = suspects.client.hgetall(suspects.keys.suspects)
    assert look(suspects, 10, keep=False) == 5.0
    assert suspects.client.hgetall(suspects.keys.suspects) == before
    assert look(suspects, 10) == 5.0


def test_rows_leave_with_their_owners(suspects: Suspects) -> None:
    look(suspects, 0)
    suspects.look({"b|2|y": T0}, T0, RUN)
    rows = suspects.client.hgetall(suspects.keys.suspects)
    assert set(rows) == {b"b|2|y"}
    suspects.look({}, T0, RUN)
    assert not suspects.client.exists(suspects.keys.suspects)


@pytest.mark.parametrize(
    "row", [b"{}", b"no JSON", b"[1]", b"null", b"\xff", b"[1,2,3,4,Infinity]"], ids=repr
)
def test_a_broken_row_counts_as_none(suspects: Suspects, row: bytes) -> None:
    """One of another version must not stop every pass from here on."""
    suspects.client.hset(suspects.keys.suspects, OWNER, row)
    assert look(suspects, 0) == 0.0
    assert look(suspects, 10) == 5.0
