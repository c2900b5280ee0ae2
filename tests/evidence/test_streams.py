"""A run that publishes several messages of one id: within a run each is one of its own, and a crash
between two of them loses none and doubles no step.

All jobs of a worker stand still when they have published their second message, and the worker is
killed there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pytest
from celery import Celery, chord
from kombu.utils.json import loads

from support.servers.database import Database, name_of
from support.servers.ledger import Ledger
from support.waiting import eventually
from support.workers.worker import Worker

NEXT, PAGES = "next", 5  # as in `support/apps/streams.py`
OPTIONS = {"strike_limit": 10, "reap_interval": 1}
NUMBERED = [str(number) for number in range(PAGES)]

#: Kind -> what its job publishes in all its runs together: each once, since these are steps ...
STEPS = {
    "pages": [*NUMBERED, "end"],
    "alike": [*["same"] * PAGES, "end"],
    "countdowns": [*NUMBERED, "end"],
    "queues": [*NUMBERED, "end"],
    "caught": [*NUMBERED, "end"],
    "last": NUMBERED,
    "replaced": NUMBERED,
}
#: ... or what each of its runs publishes by hand, as in stock, and the end.
BY_HAND = {
    "callbacks": [*NUMBERED, "end"],
    "links": [*NUMBERED, "end"],
    "errbacks": [*NUMBERED, "end"],
    "added": NUMBERED,
    "received": [*NUMBERED, "end"],
}
KINDS = [*STEPS, *BY_HAND]


def send(app: Celery, kind: str) -> None:
    job = app.signature(f"streams.{kind}", (f"s-{kind}",), immutable=True)
    note = app.signature("shop.note").set(queue=NEXT)
    if kind == "errbacks":
        job.apply_async(link_error=note)
    elif kind == "links":
        (job | note).apply_async()
    elif kind == "added":
        chord([job], app.signature("shop.note", ("body",), immutable=True), app=app)()
    else:
        job.apply_async(link=note)


def published(db: Database, queues: Sequence[str]) -> list[tuple[str, str, str]]:
    """The kind, the name and the id of each message, with its kind's end named so."""
    found = []
    for raw in (raw for queue in queues for raw in db.client.lrange(queue, 0, -1)):
        kind, _, name = name_of(raw).partition(" ")
        if not name:  # an errback gets the id of the job that failed
            kind, name = "errbacks", "end"
        found.append((kind.removeprefix("s-"), name, loads(raw)["headers"]["id"]))
    return found


@pytest.fixture
def stream(
    worker: Any, app: Celery, ledger: Ledger, db: Database
) -> Callable[..., dict[str, list[tuple[str, str]]]]:
    """Kind -> names and ids of what its job has published, in two runs."""

    def run(pool: str, kinds: Sequence[str], without: str = "") -> dict[str, list[tuple[str, str]]]:
        settings: dict[str, Any] = {
            "app": "streams",
            "pool": pool,
            "concurrency": 1 if pool == "solo" else len(kinds),
            "options": OPTIONS,
            "env": {"WITHOUT": without},
            "conf": {"worker_prefetch_multiplier": 1, "broker_pool_limit": None},
        }
        victim: Worker = worker(**settings)
        for kind in kinds:
            send(app, kind)
        between = {f"s-{kind}" for kind in kinds}
        if without:  # some never come so far
            eventually(lambda: set(ledger.starts()) == between)
            # Those that do not come so far have ended: one that is killed on its way there would
            # come there in its second run, and wait for ever.
            eventually(lambda: {*chain(*db.held().values())} <= set(ledger.told("between")))
        else:
            eventually(lambda: set(ledger.told("between")) == between)
        victim.kill9_all()
        worker(**settings)
        eventually(db.settled, 60, message="all is settled")
        assert max(ledger.runs().values()) <= 2
        found: dict[str, list[tuple[str, str]]] = {kind: [] for kind in kinds}
        for kind, name, id in published(db, [NEXT, f"{NEXT}-0", f"{NEXT}-1"]):
            found[kind].append((name, id))
        return found

    return run


def count(found: Sequence[tuple[str, str]]) -> Counter[str]:
    return Counter(name for name, _ in found)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_no_message_of_a_run_is_taken_for_a_repetition(stream, pool):
    found = stream(pool, KINDS)
    for kind, names in STEPS.items():
        assert count(found[kind]) == Counter(names), kind
    for kind, names in BY_HAND.items():
        counts = count(found[kind])
        ends = [name for name in names if name == "end"]
        assert counts.keys() >= set(names), kind
        assert counts["end"] == len(ends), f"{kind}: its true end is published once"
        assert max(counts.values()) <= 2, "each run publishes by hand what it comes to"
        ids = [id for name, id in found[kind]]
        # The links of a chain have theirs from its sender.
        assert kind == "links" or len(set(ids)) == len(ids), f"{kind}: each has an id of its own"


@pytest.mark.parametrize("kind", ["caught", "callbacks"])
def test_on_solo_too(stream, kind):
    found = count(stream("solo", [kind])[kind])
    assert found.keys() == {*NUMBERED, "end"}
    assert found["end"] == 1
    assert kind == "callbacks" or set(found.values()) == {1}


def test_the_control_takes_the_second_message_for_a_repetition(stream):
    found = stream("threads", ["pages", "last"], "numbers_of_messages")
    assert len(found["pages"]) < PAGES
    assert len(found["last"]) < PAGES


def test_the_control_takes_what_a_body_sends_for_its_end(stream):
    """Its callback has the id of the end, and all but one are dropped."""
    found = stream("threads", ["callbacks"], "numbers_of_messages,origins")
    assert count(found["callbacks"])["end"] == 0


@pytest.mark.parametrize("without", ["", "seeds"])
def test_jobs_of_one_task_id_have_followers_of_their_own(worker, app, ledger, db, without):
    """Three with a chord for their link. The control: they share the ids of one, and with them its
    chord, which ends once."""
    worker(app="steps", pool="threads", concurrency=6, options=OPTIONS, env={"WITHOUT": without})
    parts = [[f"part {part} of {number}" for number in range(3)] for part in range(2)]
    bodies = [f"body {number}" for number in range(3)]
    for *names, body in zip(*parts, bodies, strict=True):
        header = [app.signature("features.part", (name,), immutable=True) for name in names]
        end = app.signature("shop.note", (body,), immutable=True)
        job = app.signature("shop.note", ("job",), immutable=True)
        job.apply_async(task_id="report-7", link=chord(header, end, app=app))
    eventually(lambda: {*chain(*parts)} <= ledger.starts().keys(), message="all parts run")
    for name in parts[0]:
        ledger.release(name)
    # If the parts were not counted in this order, chords of one id could end one after another.
    eventually(lambda: sorted(db.running()) == parts[1], message="the first parts are counted")
    ledger.release(parts[1][0])
    eventually(lambda: sorted(db.running()) == parts[1][1:] and bodies[0] in ledger.finishes())
    ledger.release()
    eventually(db.settled)
    ended = bodies[:1] if without else bodies
    assert ledger.runs() == {"job": 3, **dict.fromkeys([*chain(*parts), *ended], 1)}
