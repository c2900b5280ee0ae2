"""Every key is made in one place, with the prefix kombu would put before it."""

from __future__ import annotations

import fnmatch
import inspect

import pytest

from celery_superfetch.store.keys import Keys
from celery_superfetch.store.keyspace import COUNT_BY_KIND, DEAD_KINDS

ARGUMENTS = {"owner": "web-1|7|abc", "queue_list": "mail", "digest": "0" * 40, "host": "web-1"}


#: Methods that look at a key and make none; and of what is only emptied.
NO_KEYS = {"prefix", "pattern", "parse"}


def every_key(keys: Keys) -> dict[str, str]:
    """All names an instance can make: plain attributes, properties and methods."""
    made: dict[str, str] = {}
    for name in dir(keys):
        if name.startswith("_") or name in NO_KEYS:
            continue
        value = getattr(keys, name)
        if callable(value):
            parameters = inspect.signature(value).parameters
            value = value(*(ARGUMENTS.get(parameter, "x") for parameter in parameters))
        made[name] = value
    return made


def test_there_are_keys_to_check():
    assert {"owners", "private", "queue", "dead", "history"} <= set(every_key(Keys()))


@pytest.mark.parametrize("prefix", ["", "shop:", "{tag}", "a*b"])
def test_every_key_begins_with_the_prefix(prefix):
    plain, prefixed = every_key(Keys()), every_key(Keys(prefix))
    for name, key in prefixed.items():
        assert key == prefix + plain[name], name


def test_only_the_queues_own_key_is_outside_our_name_space():
    outside = {name for name, key in every_key(Keys()).items() if not key.startswith("superfetch:")}
    assert outside == {"queue"}
    assert Keys().queue("mail\x06\x163") == "mail\x06\x163"


def test_no_two_keys_are_the_same():
    made = list(every_key(Keys()).values())
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("prefix", ["", "shop:", "a*b["])
@pytest.mark.parametrize("queue_list", ["mail", "a:b:c", ":", "mail\x06\x163", "sch|ön", ""])
def test_what_an_owner_has_can_be_parsed_back(prefix, queue_list):
    keys, owner = Keys(prefix), "web-1|7|0123456789ab"
    landing = keys.landing(owner, queue_list)
    assert keys.parse(landing.encode()) == ("landing:", owner, queue_list)
    assert keys.parse(keys.private(owner).encode()) == ("private:", owner, "")
    assert keys.parse(keys.owner_record(owner).encode()) == ("owner:", owner, "")


@pytest.mark.parametrize("prefix", ["", "shop:", "a*b", "a?b", "[ab]", "back\\slash", "{tag}"])
def test_the_scan_pattern_finds_private_lists(prefix):
    keys = Keys(prefix)
    private = _as_fnmatch(keys.pattern("private:"))
    assert fnmatch.fnmatchcase(keys.private("h|1|n"), private)
    for key in (keys.owner_record("h|1|n"), keys.landing("h|1|n", "mail"), keys.parked_of("mail")):
        assert not fnmatch.fnmatchcase(key, private)


@pytest.mark.parametrize("prefix", ["", "shop:", "a*b", "[ab]", "superfetch:dead:"])
def test_all_of_our_keys_are_found_and_told_apart(prefix):
    keys = Keys(prefix)
    pattern = _as_fnmatch(keys.pattern())
    assert not fnmatch.fnmatchcase(keys.queue("mail"), pattern)
    ours = every_key(keys)
    del ours["queue"]
    for name, key in ours.items():
        assert fnmatch.fnmatchcase(key, pattern), name
        kind, *_ = keys.parse(key.encode())
        assert (kind in COUNT_BY_KIND) is (
            name in {"private", "landing", "parked_of", "probation"}
        ), name
        assert (kind in DEAD_KINDS) is (name.startswith("dead") or name == "unannounced"), name


@pytest.mark.parametrize(("prefix", "other"), [("a*", "abc"), ("a?", "ab"), ("[ab]", "a")])
def test_the_scan_pattern_finds_nobody_elses(prefix, other):
    """A prefix with a pattern character must not reach into another application's keys."""
    pattern = _as_fnmatch(Keys(prefix).pattern("private:"))
    assert not fnmatch.fnmatchcase(Keys(other).private("h|1|n"), pattern)


def _as_fnmatch(pattern: str) -> str:
    """SCAN's escapes in the spelling of Python's fnmatch: one-character classes."""
    out, chars = "", iter(pattern)
    for char in chars:
        if char == "\\":
            literal = next(chars)
            out += f"[{literal}]" if literal in "*?[" else literal
        else:
            out += char
    return out
