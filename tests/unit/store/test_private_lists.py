"""What is computed of claims and payloads without asking the server."""

from __future__ import annotations

import pytest

from celery_superfetch.model.job import Counters, Job
from celery_superfetch.store.private_lists import (
    CLAIM_MAX_BYTES,
    END_BYTES,
    LARGE_BYTES,
    Claimed,
    Claims,
    recognised_by,
)

TAG = b'"delivery_tag": "a-random-one"}}'


def of_size(size: int, end: bytes = TAG) -> bytes:
    return b"x" * (size - len(end)) + end


@pytest.mark.parametrize("size", [LARGE_BYTES, LARGE_BYTES + 1, 1_000_000])
def test_a_large_payload_is_recognised_by_its_length_and_its_end(size):
    payload = of_size(size)
    assert recognised_by(payload) == (size, payload[-END_BYTES:])


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="none was brought"),
        pytest.param(of_size(LARGE_BYTES - 1), id="it is small"),
        pytest.param(of_size(LARGE_BYTES, b"}"), id="its end may be that of others"),
        pytest.param(of_size(LARGE_BYTES, TAG + b" " * END_BYTES), id="its tag is not at its end"),
    ],
)
def test_other_payloads_are_sent_again(payload):
    assert recognised_by(payload) == (0, b"")


@pytest.mark.parametrize(
    ("count", "size", "most", "short"),
    [
        (0, 0, 1, True),
        (1, 10, 2, True),
        (2, 10, 2, False),
        (3, 10, 2, False),
        (1, CLAIM_MAX_BYTES - 1, 2, True),
        (1, CLAIM_MAX_BYTES, 2, False),
        (2, CLAIM_MAX_BYTES // 2, 3, False),
    ],
)
def test_a_claim_falls_short_if_neither_number_nor_size_ended_it(count, size, most, short):
    jobs = [
        Claimed(Job("owner", "mail", b"x" * size, f"{n}:mail"), Counters()) for n in range(count)
    ]
    assert Claims(True, jobs).fell_short(most) is short
