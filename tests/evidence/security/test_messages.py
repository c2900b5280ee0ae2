"""Messages of a producer that means harm: odd bytes, deep nesting, pickles, forged headers, names
that look like commands. They harm no reader, no key and no job but their own."""

from __future__ import annotations

import base64
import json
import pickle
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from celery_superfetch.model.arguments import arguments
from celery_superfetch.model.job import Job, digest, parse
from support.workers.bench import payload

FUZZED, DEEP = 9_700, 120
VALUES: list[Any] = [None, True, -1, 10**30, 1e308, "", "x" * 300, "\ud800", [], {}, [[]], {"": {}}]


def fuzzed(dice: random.Random) -> bytes:
    """A message of which something is odd: a value, a byte, or its end."""
    message = json.loads(payload(dice.randrange(9)))
    for _ in range(dice.randrange(4)):
        at: Any = message
        while dice.random() < 0.7 and isinstance(at, dict) and at:
            key = dice.choice(list(at))
            if not isinstance(at[key], dict):
                break
            at = at[key]
        if isinstance(at, dict) and at:
            at[dice.choice(list(at))] = deepcopy(dice.choice(VALUES))
    raw = bytearray(json.dumps(message).encode())
    for _ in range(dice.choice((0, 0, 1, 5))):
        raw[dice.randrange(len(raw))] = dice.randrange(256)
    return bytes(raw[: dice.choice((len(raw), len(raw), dice.randrange(len(raw))))])


def deep(number: int) -> bytes:
    """A message with a part that is nested as deeply as JSON parsers bear, and deeper."""
    depth = 50 * (number + 1)
    nest = (b"[" * depth, b'{"a":' * depth)[number % 2]
    place = (b'"headers"', b'"body"', b'"properties"')[number % 3]
    return b"{" + place + b":" + nest


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_and_deep_messages_raise_in_no_reader(seed):
    dice = random.Random(seed)
    messages = [fuzzed(dice) for _ in range(FUZZED // 4)]
    for raw in [*messages, *map(deep, range(DEEP))]:
        parse(raw)
        assert all(isinstance(text, str) for text in arguments(raw))
        assert Job("h|1|n", "mail", raw).title.isprintable()


def test_a_dead_owner_s_odd_messages_are_recovered_and_listed(bench, cli):
    """One that could not be read would hold up the others."""
    dice = random.Random(7)
    messages = {*(fuzzed(dice) for _ in range(200)), *map(deep, range(10))}
    owner = bench.dead_owner([*messages], "celery", lists=["celery"])
    cli("jobs", "--json")
    assert bench.reaper().reap().errors == 0
    assert bench.private(owner, "celery") == []
    assert sorted(bench.queue("celery")) == sorted(messages)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_no_pickle_is_opened_to_be_looked_at(bench, cli, tmp_path):
    burst = tmp_path / "burst"
    message = json.loads(payload("bomb", "celery"))
    message["content-type"] = "application/x-python-serialize"
    message["body"] = base64.b64encode(pickle.dumps(Bomb(burst))).decode()
    raw = json.dumps(message).encode()
    bench.killed(raw, queue="celery")
    bench.give(bench.owner(lists=["celery"]), "celery", [raw])
    for words in ("status", "jobs", "jobs --json", "dead list", "dead show bomb", "doctor"):
        cli(*words.split(), code=None)
    assert not burst.exists()
    pickle.loads(pickle.dumps(Bomb(burst)))
    assert burst.exists(), "the control: to open it is to run it"


def test_forged_strikes_harm_no_job(bench):
    """No header says how often a message was lost."""
    strikes = {
        "strikes": 99,
        "since": 1,
        "history": [{"at": 1, "owner": "h|1|n", "strike": "exact"}],
    }
    forged = payload("forged", superfetch_strikes=strikes, superfetch={"strikes": 99})
    innocent = payload("innocent")
    bench.dead_owner([innocent, forged], running=[innocent, forged])
    bench.reaper().reap()
    left = [*bench.queue(), *bench.on_probation()]
    assert sorted(left) == sorted([innocent, forged])
    assert {bench.counters(raw).strikes for raw in left} == {1}
    assert not list(bench.dead_set)


LIKE_COMMANDS = [
    "\r\nFLUSHALL\r\n",
    "*1\r\n$8\r\nFLUSHALL\r\n",
    "'); redis.call('FLUSHALL') --",
    "*",
]
LIKE_COMMANDS += ["celery\x06\x163", "superfetch:owners", "\x00", "{a}{b}", "%s%n{0}"]


@pytest.mark.parametrize("name", LIKE_COMMANDS)
def test_a_name_is_no_command_no_script_and_no_other_key(bench, cli, name):
    """Of a queue, a task, a job and a worker: each lands where it belongs, and nowhere else."""
    bench.client.set("canary", "alive")
    queue = f"q{name}"
    raw = payload(name, queue=queue, task=name)
    owner = bench.dead_owner([raw], queue, running=[raw], lists=[queue], node=name)
    bench.killed(payload(f"2{name}", queue=queue, task=name), queue=queue, reason=name)
    for words in ("status", "jobs", "dead list"):
        cli(*words.split(), code=None)
    assert bench.reaper().reap().errors == 0
    assert bench.private(owner, queue) == []
    assert bench.queue(queue) == [raw]
    assert bench.client.get("canary") == b"alive"
    own = {"canary", queue}
    assert all(key in own or key.startswith("superfetch:") for key in bench.key_names())


def test_no_error_says_a_password(cli):
    url = "redis://user:pa55word@127.0.0.1:1/0"
    for words in (
        "status",
        "jobs",
        "reap",
        "check",
        "doctor",
        "dead list",
        "drill --queue q --yes",
    ):
        done = cli(*words.split(), code=None, url=url)
        assert done.code != 0, words
        assert "pa55word" not in done.out + done.err, words


def test_two_jobs_of_other_bytes_share_no_history():
    assert digest(payload("a")) != digest(payload("b"))
