"""Bodies are read by a decoder of ours, to the same values as by kombu's."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from decimal import Decimal

import pytest
from kombu import serialization
from kombu.exceptions import DecodeError
from kombu.utils import json

from celery_superfetch.transport.deliveries import JSON, loads, read_json_by_ours

BODY = [
    [1, 1.5, None, True, "ä", "😀", {"a": [{"b": {}}]}],
    {"at": dt.datetime(2026, 2, 28, 23, 59, tzinfo=dt.timezone.utc), "price": Decimal("1.10")},
    {"id": uuid.UUID(int=7), "__type__": "none of kombu's"},
]


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    decoders = serialization.registry._decoders
    before = decoders[JSON]
    decoders[JSON] = json.loads
    yield
    decoders[JSON] = before


@pytest.mark.parametrize(
    "kind",
    [
        str,
        str.encode,
        lambda text: bytearray(text.encode()),
        lambda text: memoryview(text.encode()),
    ],
)
def test_it_reads_what_kombu_reads(kind):
    text = json.dumps(BODY)
    assert loads(kind(text)) == json.loads(kind(text)) == BODY


def test_kombus_own_is_replaced():
    read_json_by_ours()
    assert serialization.registry._decoders[JSON] is loads
    assert serialization.loads(json.dumps(BODY), JSON, "utf-8", accept={JSON}) == BODY
    with pytest.raises(DecodeError):
        serialization.loads("[1,", JSON, "utf-8", accept={JSON})


def test_the_users_own_stays(monkeypatch):
    decoders = serialization.registry._decoders
    monkeypatch.setitem(decoders, JSON, own := lambda _: "own")
    read_json_by_ours()
    assert decoders[JSON] is own
