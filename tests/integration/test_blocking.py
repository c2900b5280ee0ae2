"""Calling off a blocking read, whichever of the two commands the server sees first."""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from celery_superfetch.blocking import BlockingRead, unblock
from celery_superfetch.membership import BLOCK_TIMEOUT
from parts.bench import Bench, payload
from parts.inbox import Inbox


@pytest.fixture
def inbox(url: str) -> Inbox:
    own = Inbox(url, consume=False)
    own.channel.fetch.join(["mail"])
    return own


def opened(inbox: Inbox) -> BlockingRead:
    read = BlockingRead(inbox.channel.membership, "mail", inbox.channel._connparams())
    read.connect()
    return read


def test_a_read_that_the_server_has_not_seen_yet_is_called_off_all_the_same(inbox: Inbox) -> None:
    """They come by two connections, so that UNBLOCK may be there first; its reply is 0 then."""
    with inbox:
        read = opened(inbox)
        began = monotonic()
        late = threading.Timer(0.2, read.arm)
        late.start()
        assert unblock(inbox.channel.membership.client, [read])
        late.join()
        assert read.read() is None
        assert monotonic() - began < BLOCK_TIMEOUT / 2
        read.close()


def test_a_read_that_was_served_already_brings_its_job(inbox: Inbox, bench: Bench) -> None:
    with inbox:
        read = opened(inbox)
        read.arm()
        bench.push("mail", payload(1))
        assert unblock(inbox.channel.membership.client, [read])
        assert read.read() == payload(1)
        read.close()


def test_what_cannot_be_called_off_in_time_is_left_to_wait(inbox: Inbox) -> None:
    with inbox:
        read = opened(inbox)  # never armed: the server knows it, and it never blocks
        assert not unblock(inbox.channel.membership.client, [read])
        read.close()
