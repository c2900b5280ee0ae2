"""What the storm sends and does, against what was written down that has to come of it."""

from __future__ import annotations

import pytest

from evidence.storm import harms, load
from evidence.storm.fleet import PLACES
from evidence.storm.odd import ODD


@pytest.mark.parametrize("kind", load.MIX)
def test_each_kind_of_job_has_a_sender_and_an_expectation(kind):
    assert callable(getattr(load.Load, f"_{kind}"))
    assert any(kind in kinds.split(", ") for kinds in load.EXPECTED)


def test_the_mix_is_of_a_thousand():
    assert sum(load.MIX.values()) == 1000


def test_each_kind_of_harm_has_an_expectation():
    words = {word for kinds in harms.EXPECTED for word in kinds.replace(",", "").split()}
    kinds = harms.Harms(None, 0)._kinds  # type: ignore[arg-type]
    assert [kind for kind in kinds if words.isdisjoint(kind.replace(",", "").split())] == []


def test_each_queue_is_served():
    assert {place.queue for place in PLACES.values()} == set(load.QUEUES)


@pytest.mark.parametrize("name", ODD)
def test_odd_exceptions_are_made_anew_and_have_an_end(name):
    make, ends = ODD[name]
    assert isinstance(make(), BaseException)
    assert make() is not make()
    assert "FAILURE" in ends
