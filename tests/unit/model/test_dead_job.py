"""A job of the dead set as a value: what is shown of it, which ones are meant."""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from celery_superfetch.errors import BadFilter
from celery_superfetch.model.arguments import ARGUMENTS_MAX_CHARS, BODY_MAX_BYTES, arguments
from celery_superfetch.model.dead_job import DeadFilter, DeadJob, utc
from celery_superfetch.model.job import digest, eta_of
from support.workers.bench import payload

SEP = "\x06\x16"


def dead(raw: bytes = b"junk", **fields: Any) -> DeadJob:
    made = DeadJob(
        id=digest(raw),
        payload=raw,
        queue_list="mail",
        reason="its process is gone",
        task="shop.note",
        task_id="id-1",
        app_name="shop",
        node="celery@web1",
        owner="web1|7|abc",
        strikes=3,
        recoveries=4,
        history=(
            {"owner": "web2|8|def", "reason": "gone", "strike": "suspect", "at": 7},
            {"owner": "web1|7|abc", "reason": "lost", "strike": "exact"},
        ),
        died_at=9_500,
    )
    return replace(made, **fields)


def message(body: Any, kind: str = "application/json", **changes: Any) -> bytes:
    raw = json.loads(payload("id-1"))
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    raw["body"] = base64.b64encode(data).decode()
    raw["content-type"] = kind
    raw["headers"].update(changes)
    return json.dumps(raw).encode()


class Bomb:
    """Unpickled, it says so."""

    went_off = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Bomb, "went_off", True)


def test_arguments_are_those_the_sender_shows():
    raw = message([["secret"], {}, {}], argsrepr="('***',)", kwargsrepr="{}")
    assert arguments(raw) == ("('***',)", "{}")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"argsrepr": "('***',)"}, ("('***',)", "{'b': 1}")),
        ({"kwargsrepr": "{'b': '***'}"}, ("['secret']", "{'b': '***'}")),
        ({"argsrepr": "('***',)", "kwargsrepr": None}, ("('***',)", "{'b': 1}")),
    ],
)
def test_what_the_sender_masks_of_one_kind_stays_masked(given, shown):
    assert arguments(message([["secret"], {"b": 1}, {}], **given)) == shown


def test_without_them_a_json_body_is_read():
    assert arguments(message([[1, "a"], {"b": None}, {}])) == ("[1, 'a']", "{'b': None}")
    assert arguments(message({"args": [1], "kwargs": {}})) == ("[1]", "{}"), "protocol 1"


def test_nothing_is_ever_unpickled_for_display():
    body = pickle.dumps(([Bomb()], {}, {}))
    shown = arguments(message(body, "application/x-python-serialize"))
    assert shown[0] == "(not shown: application/x-python-serialize)"
    assert not Bomb.went_off
    pickle.loads(body)
    assert Bomb.went_off, "it would have gone off"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"junk", ""),
        (message(b"\xff\xfe"), "cannot be decoded"),
        (message(5), "cannot be decoded"),
        (message([[1], {}, {}], compression="application/x-gzip"), "compressed"),
        (message([["x" * BODY_MAX_BYTES], {}, {}]), "characters"),
    ],
    ids=["junk", "no text", "no list", "compressed", "long"],
)
def test_what_cannot_be_shown_says_why(raw, said):
    assert said in arguments(raw)[0]


def test_a_long_view_is_cut():
    for raw in (
        message([["x" * 5000], {}, {}]),
        message([[], {}, {}], argsrepr="x" * 5000, kwargsrepr=""),
    ):
        view = arguments(raw)[0]
        assert len(view) == ARGUMENTS_MAX_CHARS
        assert view.endswith("xxx...")


def test_the_history_names_owner_host_and_time():
    first, last = dead().as_dict()["history"]
    assert first == {
        "owner": "web2|8|def",
        "host": "web2",
        "reason": "gone",
        "strike": "suspect",
        "at": 7,
        "time": "1970-01-01T00:00:07.000+00:00",
    }
    assert (last["host"], last["strike"]) == ("web1", "exact")
    assert last["at"] == 9.5, "the one that killed it has the time of death"
    assert last["time"] == dead().as_dict()["time_of_death"] == "1970-01-01T00:00:09.500+00:00"
    assert dead(died_at=0).as_dict()["time_of_death"] is None, "its killer does not know"


# -- which ones are meant


@pytest.mark.parametrize(
    "conditions",
    [
        {},
        {"task": "shop.note"},
        {"task": "shop.*"},
        {"queue": "mail"},
        {"queue": "m?il"},
        {"reason": "PROCESS"},
        {"task": "*", "queue": "mail", "reason": "gone"},
    ],
    ids=str,
)
def test_a_filter_takes(conditions):
    assert DeadFilter(**conditions).takes(dead(), "mail")


@pytest.mark.parametrize(
    "conditions",
    [
        {"task": "note"},
        {"task": "[s]hop.note"},
        {"queue": "mai"},
        {"queue": "mail2"},
        {"reason": "strike"},
        {"task": "shop.note", "queue": "slow"},
    ],
    ids=str,
)
def test_a_filter_does_not_take(conditions):
    assert not DeadFilter(**conditions).takes(dead(), "mail")


def test_ages_become_a_window_of_times():
    assert DeadFilter().window(100_000) == (float("-inf"), float("inf"))
    assert DeadFilter(older_than=30, newer_than=60).window(100_000) == (40_000, 70_000)


def test_a_last_entry_whose_time_is_none_has_the_time_of_death():
    broken = [{"reason": "gone", "at": "yesterday"}, {"reason": "lost", "at": 1e30}]
    record = json.dumps({"payload": "junk", "history": broken}).encode()
    first, last = DeadJob.load("id", record, 9_500).events
    assert (first["at"], first["time"]) == (None, None)
    assert (last["at"], last["time"]) == (9.5, "1970-01-01T00:00:09.500+00:00")


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({"task": ""}, "'task' is empty"),
        ({"queue": ""}, "'queue' is empty"),
        ({"reason": ""}, "'reason' is empty"),
        ({"older_than": -1}, "'older_than' must be"),
        ({"newer_than": float("nan")}, "'newer_than' must be"),
        ({"older_than": 60, "newer_than": 60}, "exclude each other"),
    ],
    ids=str,
)
def test_a_filter_that_makes_no_sense_is_refused(conditions, said):
    with pytest.raises(BadFilter, match=said):
        DeadFilter(**conditions)


@pytest.mark.parametrize(
    ("eta", "said"),
    [
        ("9999-12-31T23:59:59-01:00", "9999-12-31T23:59:59.000+00:00"),
        ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00.000+00:00"),
    ],
)
def test_a_time_beyond_the_last_or_first_is_shown_as_that(eta, said):
    """One such job would hide all others from whoever lists them."""
    assert utc(eta_of(eta)) == said
