"""How commands are written to a connection."""

from __future__ import annotations

from enum import Enum

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.connection import Connection

from celery_superfetch.store.redis.pipeline import UNCOPIED_BYTES, packed


class Text(str, Enum):
    """One that is formatted otherwise than it is encoded."""

    PLAIN = "plain"
    OTHER = "é"


ARGUMENTS = st.one_of(
    st.text(),
    st.sampled_from(Text),
    st.binary(),
    st.integers(),
    st.floats(),
    st.just(b"\r\n" * UNCOPIED_BYTES),
    st.just("é" * UNCOPIED_BYTES),
)
COMMANDS = st.lists(st.lists(ARGUMENTS, max_size=8).map(lambda rest: ["EVALSHA", *rest]))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(COMMANDS)
def test_commands_are_packed_as_by_redis_py(commands):
    theirs = Connection().pack_commands(commands)
    assert b"".join(packed(commands)) == b"".join(theirs)


def test_what_is_large_is_not_copied():
    payload = b"x" * UNCOPIED_BYTES
    assert any(piece is payload for piece in packed([["EVALSHA", "digest", payload, "rest"]]))


@pytest.mark.parametrize("argument", [None, True, bytearray(b"x"), ["x"]])
def test_what_redis_py_would_not_send_is_not_sent(argument):
    with pytest.raises(TypeError, match="cannot be sent"):
        packed([["EVALSHA", argument]])
