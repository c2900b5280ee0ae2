"""When a job is worth parking, and when the next parked job is due, by the server's clock."""

from __future__ import annotations

from celery_superfetch.model.start_permit import clock
from celery_superfetch.owner.in_flight.parking import WORTH_PARKING, Parking


def test_whoever_parks_knows_when_it_is_due_whatever_an_older_answer_says():
    parking = Parking()
    assert not parking.is_worth(1e15), "nobody has heard the server's clock"
    asked = clock()
    parking.note_answer(1_000, None, asked)
    assert not parking.is_due
    parking.note_parked(1_500)
    assert parking.is_due, "a second early"
    parking.note_answer(1_000, 9_000, asked)
    assert parking.is_due, "that was asked before"
    parking.note_answer(1_000, 9_000, clock())
    assert not parking.is_due


def test_when_it_is_due_the_servers_clock_says_and_no_other():
    """Which is set forward, and back; and where heartbeats are rare, it is asked in between."""
    parking = Parking()
    parking.note_answer(1_000, 100_000, clock())
    assert not parking.is_due
    parking.note_answer(99_500, 100_000, clock())
    assert parking.is_due
    parking.note_answer(1_000, 100_000, clock())
    assert not parking.is_due
    assert parking.is_worth(7_000)
    assert not parking.is_worth(5_500)
    parking.note_answer(1_000, None, clock())
    parking._next = parking._next[0], clock() - WORTH_PARKING - 1
    assert parking.is_due, "others may have parked one meanwhile"
