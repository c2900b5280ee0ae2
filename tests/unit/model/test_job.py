"""What can be read from a payload, and that reading never raises."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
from typing import Any

import pytest

from celery_superfetch.model.job import (
    CLAIMS_A_SECOND,
    Envelope,
    Job,
    claim_id,
    claim_number,
    claimed_at,
    digest,
    parse,
    queue_list_of,
)


def message(**changes: Any) -> dict[str, Any]:
    return {
        "body": "W1tdLHt9LHt9XQ==",
        "headers": {"task": "shop.add", "id": "id-1"},
        "properties": {
            "correlation_id": "id-1",
            "delivery_tag": "tag-1",
            "delivery_info": {"exchange": "", "routing_key": "mail"},
        },
        **changes,
    }


def payload(**changes: Any) -> bytes:
    return json.dumps(message(**changes)).encode()


@pytest.mark.parametrize(
    ("headers", "task"),
    [
        ({"task": "shop.add", "id": "id-1"}, "shop.add"),
        ({}, None),
        ({"task": ["shop.add"], "id": 7}, None),
    ],
    ids=["Celery's", "plain kombu's", "names that are no text"],
)
def test_a_message_names_its_task_and_id(headers, task):
    """Without an id it is the correlation id."""
    envelope = parse(payload(headers=headers))
    assert (envelope.task, envelope.task_id) == (task, "id-1")
    assert envelope.message == message(headers=headers)


def test_a_message_without_headers_is_a_message():
    plain = message()
    del plain["headers"]
    assert parse(json.dumps(plain).encode()).message == plain


def body(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize("encoding", ["base64", "utf-8"])
def test_protocol_1_names_its_task_in_the_body(encoding):
    """A2."""
    told = {"task": "shop.add", "id": "id-2", "eta": "2026-01-02T03:04:05", "args": []}
    old = message(
        headers={"mine": 1}, body=body(told) if encoding == "base64" else json.dumps(told)
    )
    old |= {"content-type": "application/json"}
    old["properties"]["body_encoding"] = encoding
    envelope = parse(json.dumps(old).encode())
    assert (envelope.task, envelope.task_id) == ("shop.add", "id-2")
    assert envelope.eta == 1767323045.0


@pytest.mark.parametrize(
    "changes",
    [
        {"body": pickle.dumps({"task": "shop.add"}).hex()},
        {"content-type": "application/x-python-serialize"},
        {"headers": {"compression": "zlib"}},
        {"headers": {"task": None}},
        {"body": "%"},
        {"body": None},
        {"body": body([{"task": "shop.add"}])},
        {"body": body({"task": ["shop.add"], "id": 7})},
        {"body": "[" * 100_000},
    ],
    ids=repr,
)
def test_a_body_that_cannot_be_read_safely_names_nothing(changes):
    """A2: nothing is unpickled, nothing unpacked."""
    old = {**message(headers={}, body=body({"task": "shop.add", "id": "id-2"})), **changes}
    old.setdefault("content-type", "application/json")
    old["properties"]["body_encoding"] = "utf-8" if str(old["body"]).startswith("[") else "base64"
    envelope = parse(json.dumps(old).encode())
    assert envelope.message is not None
    assert (envelope.task, envelope.task_id) == (None, "id-1")


JUNK = {
    "nothing": b"",
    "no JSON": b"hello",
    "not even text": b"\xff\xfe\x00",
    "cut short": payload()[:-10],
    "a number": b"7",
    "a text": b'"properties"',
    "null": b"null",
    "a list": b"[1, 2]",
    "an empty object": b"{}",
    "properties of another type": payload(properties=[1]),
    "no delivery tag": payload(properties={"delivery_info": {"routing_key": "mail"}}),
    "no delivery info": payload(properties={"delivery_tag": "t"}),
    "no routing key": payload(properties={"delivery_tag": "t", "delivery_info": {}}),
    "delivery info of another type": payload(
        properties={"delivery_tag": "t", "delivery_info": "mail"}
    ),
    "headers of another type": payload(headers=[1]),
    "a delivery tag of another type": payload(
        properties={"delivery_tag": [], "delivery_info": {"routing_key": "mail"}}
    ),
    "nested without end": b"[" * 100_000,
    "a lone surrogate for a number": b'{"properties": \\ud800}',
}


@pytest.mark.parametrize("raw", JUNK.values(), ids=JUNK)
def test_junk_is_no_message(raw):
    assert parse(raw) == Envelope()


def test_a_digest_is_of_the_exact_bytes():
    raw = payload()
    assert digest(raw) == hashlib.sha1(raw).hexdigest()
    same_to_json = raw.replace(b": ", b":")
    assert json.loads(same_to_json) == json.loads(raw)
    assert digest(same_to_json) != digest(raw)


@pytest.mark.parametrize(
    ("eta", "seconds"),
    [
        ("2026-01-02T03:04:05+00:00", 1767323045.0),
        ("2026-01-02T03:04:05.500000", 1767323045.5),
        ("2026-01-02T03:04:05Z", 1767323045.0),
        ("2026-01-02T04:04:05+01:00", 1767323045.0),
        (None, 0.0),
        ("soon", 0.0),
        (5, 0.0),
    ],
)
def test_when_a_job_is_due(eta, seconds):
    headers = {"task": "shop.add", "id": "id-1", "eta": eta}
    assert parse(json.dumps(message(headers=headers)).encode()).eta == seconds


@pytest.mark.parametrize(
    ("raw", "title"),
    [
        (b"junk", f"unparseable payload[{digest(b'junk')}]"),
        (
            payload(properties={"delivery_tag": "", "delivery_info": {"routing_key": ""}}),
            "shop.add[id-1]",
        ),
    ],
)
def test_titles_say_what_is_known(raw, title):
    assert Job("web-1|7|abc", "mail", raw).title == title


@pytest.mark.parametrize("queue_list", ["mail", "a:b:c", ":", "", "mail\x06\x163", "schön"])
def test_the_name_of_a_claim_tells_when_it_was_made_and_whence_it_came(queue_list):
    number = 1_800_000_000 * CLAIMS_A_SECOND + 7
    name = claim_id(number, queue_list)
    assert (claim_number(name), queue_list_of(name)) == (number, queue_list)
    assert claimed_at(name) == 1_800_000_000
    assert claim_number(claim_id(number + 1, queue_list)) > number


@pytest.mark.parametrize("name", ["", "mail", ":mail", "no number:mail", "\ufffd:mail"])
def test_a_name_that_is_none_of_ours_is_older_than_all(name):
    assert claim_number(name) == 0
    assert claimed_at(name) is None


def test_a_number_of_a_claim_is_exact_in_lua():
    """Its numbers are doubles."""
    year_2242 = 2**33
    assert year_2242 * CLAIMS_A_SECOND == 2**53
