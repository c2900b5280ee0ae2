"""D2. Whatever fails in a script that moves jobs, each job is in exactly one place afterwards.

With a `strike_window` of 10**16 s EXPIRE failed behind LREM, and three of three jobs were nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis

from celery_superfetch.store.redis.scripts import source
from support.servers.whereabouts import content, places
from support.workers.bench import Bench
from support.workers.scripts import CASES, ONE, TWO, Case, claim, park

each_script = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """With a dead set that is full as soon as a second job comes."""
    return make_bench(dead_limit=1)


def check(found: dict[bytes, Any], before: dict[bytes, Any], settles: bool) -> None:
    for raw in (ONE, TWO):
        if places(before, raw):
            assert len(places(found, raw)) in ((0, 1) if settles else (1,)), places(found, raw)


WRONG: dict[str, Callable[[redis.Redis, str], Any]] = {
    "string": lambda client, key: client.set(key, "?"),
    "list": lambda client, key: client.rpush(key, "?"),
    "hash": lambda client, key: client.hset(
        key, mapping=dict.fromkeys(("?", "recoveries", "recovered", "requeues", "state"), "?")
    ),
    "set": lambda client, key: client.sadd(key, "?"),
    "zset": lambda client, key: client.zadd(key, {"?": 1}),
}


@pytest.mark.parametrize("wrong", WRONG)
@each_script
def test_what_holds_something_else_is_found_before_anything_moves(bench, client, case, wrong):
    """A script that answers with an error has changed nothing, whichever key is to blame."""

    def keys(made: Case) -> list[str]:
        return [*dict.fromkeys([*made.call.keys, *made.more])]

    for at in range(len(keys(case(bench)))):
        client.flushall()
        made = case(bench)
        key = keys(made)[at]
        now = content(client)
        if any(key.encode() in places(now, raw) for raw in (ONE, TWO)):
            continue  # the job itself would be gone
        client.delete(key)
        WRONG[wrong](client, key)
        before = content(client)
        try:
            bench.run(made.call)
        except redis.ResponseError:
            # But for a lock: whoever retries a job lets others try, whatever comes of it.
            assert content(client) == {k: v for k, v in before.items() if b":lock:" not in k}, key
        else:
            check(content(client), before, made.settles)


#: Counts what a script asks for, and fails at one of them; but not between the arrival of a job and
#: its departure, which follow each other: what can refuse that was asked for before.
INJECTED = """
local real, count, leaves = redis, 0, {LPOP = true, HDEL = true, RPOP = true, ZREM = true}
local arrives = {LPUSH = true, RPUSH = true, HSET = true, HSETNX = true, ZADD = true}
local last = ''
local function refused(name)
  count = count + 1
  local between = arrives[last] and leaves[name]
  last = name
  return count == %d and not between
end
local redis = setmetatable({
  call = function(name, ...)
    if refused(name) then error('injected') end
    return real.call(name, ...)
  end,
  pcall = function(name, ...)
    if refused(name) then return {err = 'injected'} end
    return real.pcall(name, ...)
  end,
}, {__index = real})
"""

#: Commands of the longest script, more than enough.
COMMANDS = 80


@each_script
def test_an_error_at_any_command_leaves_each_job_in_one_place(bench, client, case):
    failed = 0
    for number in range(1, COMMANDS):
        client.flushall()
        made = case(bench)
        name, keys, args, *_ = made.call
        before = content(client)
        whole, text = bench.scripts._source(name), source(name)
        text = whole.removesuffix(text) + INJECTED % number + text
        try:
            client.eval(text, len(keys) + 1, *keys, bench.keys.never, *args)
        except redis.ResponseError:
            failed += 1
        check(content(client), before, made.settles)
    assert failed >= 2, "there were errors"


@each_script
def test_a_user_who_loses_a_permission_loses_no_job(own, case):
    """An upgrade wants one that an older user does not have, or somebody takes it away."""
    place = own.connection_pool.connection_kwargs
    allowed = ["ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all"]
    own.execute_command(*allowed)
    user = redis.Redis(port=place["port"], username="worker", password="pw")
    bench = Bench(user, dead_limit=1)
    names = {n.lower() for n in re.findall(r"call\(\s*'([A-Z]+)'", source(case(bench).call.name))}
    for name in sorted(names | {"lpush", "rpush"}):  # these may be a variable there
        own.execute_command(*allowed)
        own.flushall()
        made = case(bench)
        before = content(own)
        own.execute_command("ACL", "SETUSER", "worker", f"-{name}")
        with suppress(redis.ResponseError):
            bench.run(made.call)
        check(content(own), before, made.settles)
    user.close()


def test_control_a_job_that_leaves_before_the_check_is_lost(bench, client):
    """The look at the places has teeth."""
    made = park(bench)
    before = content(client)
    text = "redis.call('HDEL', KEYS[1], ARGV[4]) redis.call('ZADD', KEYS[2], 'x')"
    with pytest.raises(redis.ResponseError):
        client.eval(text, len(made.call.keys), *made.call.keys, *made.call.args)
    with pytest.raises(AssertionError):
        check(content(client), before, settles=False)


def test_control_a_claim_that_is_refused_and_not_undone_loses_its_jobs(bench, client):
    made = claim(bench)
    private = made.call.keys[2]
    client.set(private, "?")
    before = content(client)
    whole, undone = bench.scripts._source("claim"), "redis.call('RPUSH'"
    assert whole.count(undone) == 1
    for text in (whole, whole.replace(undone, "redis.call('EXISTS'")):
        check(content(client), before, settles=False)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            client.eval(text, len(made.call.keys) + 1, *made.call.keys, "never", *made.call.args)
    with pytest.raises(AssertionError):
        check(content(client), before, settles=False)
