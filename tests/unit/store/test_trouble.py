"""What a person is told to do about a server that cannot be used."""

from __future__ import annotations

import pytest
from redis import exceptions

from celery_superfetch.store.redis.trouble import advice_for, advice_on_refusal

CASES = {
    "WRONGPASS invalid username-password pair": (exceptions.AuthenticationError, "password"),
    "invalid username-password pair or user is disabled.": (
        exceptions.AuthenticationError,
        "the user or the password in the URL is wrong",
    ),
    "Authentication required.": (exceptions.AuthenticationError, "requires a password"),
    "HELLO must be called with the client already authenticated, otherwise ...": (
        exceptions.AuthenticationError,
        "requires a password",
    ),
    "NOAUTH Authentication required.": (exceptions.ResponseError, "requires a password"),
    "command not allowed when used memory > 'maxmemory'.": (
        exceptions.OutOfMemoryError,
        "full and refuses writes: raise maxmemory",
    ),
    "max number of clients reached": (exceptions.MaxConnectionsError, "raise maxclients"),
    "ERR max concurrent connections exceeded": (exceptions.ResponseError, "the plan has no"),
    "DB index is out of range": (exceptions.ResponseError, "end in /0"),
    "Error 111 connecting to localhost:1. Connection refused.": (
        exceptions.ConnectionError,
        "nothing listens",
    ),
    "Error -2 connecting to nosuch:6379. Name or service not known.": (
        exceptions.ConnectionError,
        "cannot be resolved",
    ),
    "WRONGTYPE Operation against a key holding the wrong kind of value": (
        exceptions.ResponseError,
        "`celery -A shop superfetch status` names the key",
    ),
    "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.": (
        exceptions.ResponseError,
        "end it with `redis-cli SCRIPT KILL`",
    ),
    "User shop has no permissions to run the 'zadd' command": (
        exceptions.NoPermissionError,
        "`celery -A shop superfetch doctor` names each that is missing",
    ),
    "No permissions to access a key": (exceptions.NoPermissionError, "doctor` names each"),
    "ACL failure in script: No permissions to access a key script: on @user_script:1.": (
        exceptions.ResponseError,
        "doctor` names each",
    ),
    "@user_script: 1: The user executing the script can't run this command or subcommand": (
        exceptions.ResponseError,
        "doctor` names each",
    ),
    "You can't write against a read only replica.": (exceptions.ReadOnlyError, "a replica"),
    "@user_script: 1: -READONLY You can't write against a read only replica.": (
        exceptions.ResponseError,
        "a replica",
    ),
    "Redis is loading the dataset in memory": (exceptions.BusyLoadingError, "is loading its data"),
}


@pytest.mark.parametrize("text", CASES)
def test_each_refusal_has_its_advice(text, monkeypatch):
    monkeypatch.setattr("sys.argv", ["celery", "-A", "shop", "superfetch", "status"])
    kind, advice = CASES[text]
    assert advice in advice_for(kind(text), "redis://localhost")


def test_a_silence_may_be_a_missing_tls():
    silence = exceptions.TimeoutError("Timeout reading from socket")
    assert "TLS" not in advice_for(silence, "redis://localhost")
    assert "use redis:// instead of rediss://" in advice_for(silence, "rediss://localhost")
    assert advice_for(ValueError("something else")) == ""


def test_the_advice_on_a_refusal_is_a_sentence_for_each():
    busy = exceptions.ResponseError("Redis is busy running a script")
    assert advice_on_refusal(busy).startswith("A script (or function) of some program has run")
    assert advice_on_refusal(exceptions.ResponseError("new")).startswith(
        "Check the memory, disk, replicas"
    )
