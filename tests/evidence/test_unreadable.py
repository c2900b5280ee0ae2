"""Messages that this worker cannot decode, or that Celery calls invalid: none of them vanishes."""

from __future__ import annotations

import base64
from typing import Any

import celery
import pytest
from celery.states import READY_STATES

from celery_superfetch import PoisonPill
from support.waiting import eventually
from support.workers.odd import message, payload

#: What its pickle names is a class of a module that nobody has.
STRANGE = base64.b64encode(b"\x80\x04\x8c\x07nowhere\x94\x8c\x05Thing\x94\x93\x94.").decode()
PICKLED = {"content-type": "application/x-python-serialize", "content-encoding": "binary"}

#: What such a message has, and what its worker accepts: why it is in the dead set.
UNREADABLE: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "a class that is not there": (
        {"envelope": {"body": STRANGE, **PICKLED}},
        ["json", "pickle"],
        "cannot be read: DecodeError from ModuleNotFoundError (",
    ),
    "a content type that is refused": (
        {"envelope": {"body": STRANGE, **PICKLED}},
        ["json"],
        "cannot be read: ContentDisallowed (",
    ),
    "an ETA that is none": (
        {"headers": {"eta": "soon"}},
        ["json"],
        "cannot be read: InvalidTaskError from ValueError (",
    ),
}


@pytest.fixture(autouse=True)
def may_unpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else Celery's worker refuses to, where tests run as root."""
    monkeypatch.setenv("C_FORCE_ROOT", "1")


#: Where a message has signatures: what is none.
SIGNATURES: list[dict[str, Any]] = [
    {"callbacks": [{"task": "shop.note", "options": None}]},
    {"callbacks": [{"task": "shop.note", "subtask_type": "group", "kwargs": [1], "options": {}}]},
    {"chain": [{"task": "shop.note"}]},
    {"chain": [5]},
    {"chord": {"task": "shop.note", "options": None}},
]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_signature_that_is_none_costs_its_job_alone(worker, app, ledger, db, client, pool):
    """A thread kept such a job for ever, without a word, and a solo worker ended."""
    one = worker(pool=pool)
    for at, embed in enumerate(SIGNATURES):
        body = [[f"odd {at}"], {}, embed]
        client.lpush("celery", payload(message(f"odd {at}", task="shop.note", body=body)))
    client.lpush("celery", payload(message("behind", task="shop.note")))
    eventually(lambda: "behind" in ledger.finishes() and not db.private_lists())
    assert one.alive()
    for at in range(len(SIGNATURES)):
        assert app.AsyncResult(f"id-odd {at}").state in READY_STATES


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_they_are_in_the_dead_set_and_their_callers_are_told(worker, app, db, ledger, client, pool):
    """A5. Nothing was left of them: no job, no result."""
    accepts = ["json", "pickle"]
    one = worker(pool=pool, conf={"accept_content": accepts})
    unreadable = {n: how for n, (how, accepted, _) in UNREADABLE.items() if accepted == accepts}
    two = worker(pool=pool, queues=["other"])
    plain = {n: how for n, (how, accepted, _) in UNREADABLE.items() if accepted == ["json"]}
    for queue, names in (("celery", unreadable), ("other", plain)):
        messages = [payload(message(n, task="shop.note", **how)) for n, how in names.items()]
        client.lpush(queue, *messages, payload(message(f"behind {queue}", task="shop.note")))
    for name, (_, _, why) in UNREADABLE.items():
        with pytest.raises(PoisonPill) as told:
            app.AsyncResult(f"id-{name}").get(timeout=20)
        assert why in told.value.reason
    reasons = {record["task_id"]: record["reason"] for record in db.dead()}
    assert reasons.keys() == {f"id-{name}" for name in UNREADABLE}
    assert all(
        r.endswith("; all live workers of its queue have the same tasks") for r in reasons.values()
    )
    eventually(lambda: ledger.runs() == {"behind celery": 1, "behind other": 1})
    eventually(lambda: not db.held() and not client.exists("superfetch:dead:unannounced"))
    assert not client.exists("superfetch:dead:junk")
    assert one.alive()
    assert two.alive()


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_those_that_redis_refuses_to_move_are_moved_later(worker, db, client, pool):
    """Celery acked them: a job whose move was refused was nowhere."""
    one = worker(pool=pool, conf={"accept_content": ["json", "pickle"]})
    names = ["a class that is not there", "an ETA that is none"]
    unreadable = {name: UNREADABLE[name][0] for name in names}
    in_the_way = "superfetch:dead"
    client.set(in_the_way, "no set")
    messages = [payload(message(n, task="shop.note", **how)) for n, how in unreadable.items()]
    client.lpush("celery", *messages)
    one.wait_log("could not be moved to the dead set")
    client.delete(in_the_way)
    one.wait_log("Can't decode message")
    one.wait_log("Received invalid task message")
    expected = {f"id-{name}" for name in unreadable}
    eventually(lambda: {record["task_id"] for record in db.dead()} == expected)
    eventually(db.settled, message="their notices have run, too")
    assert one.alive()


def test_they_go_to_who_can_read_them(worker, make_app, ledger, db):
    """A5. In a rolling deploy, workers of tomorrow accept what those of yesterday refuse."""
    old = worker(name="old", concurrency=1)
    app = make_app(conf={"task_serializer": "pickle", "accept_content": ["pickle"]})
    worker(name="new", app="builder", conf={"accept_content": ["json", "pickle"]})
    jobs = [f"n{number}" for number in range(10)]
    for job in jobs:
        app.send_task("shop.note", (job,))
    eventually(lambda: set(jobs) <= set(ledger.finishes()))
    assert set(ledger.runs().values()) == {1}
    assert not db.dead()
    assert old.alive()


def test_they_come_back_with_who_can_read_them(worker, make_app, ledger, db, cli):
    worker(name="old")
    app = make_app(conf={"task_serializer": "pickle", "accept_content": ["json", "pickle"]})
    sent = app.send_task("shop.note", ("a",))
    with pytest.raises(PoisonPill, match="all live workers of its queue"):
        sent.get(timeout=20)
    worker(name="new", queues=["new"], conf={"accept_content": ["json", "pickle"]})
    assert "Requeued to new" in cli("dead", "retry", sent.id, "--to", "new").out
    eventually(lambda: ledger.runs() == {"a": 1})
    assert not db.dead()


@pytest.mark.parametrize("name", UNREADABLE)
def test_the_control_celery_alone_discards_them(worker, app, ledger, db, client, name):
    how, accepted, _ = UNREADABLE[name]
    worker(options={"unknown_tasks": "discard"}, conf={"accept_content": accepted})
    unreadable = payload(message(name, task="shop.note", **how))
    client.lpush("celery", unreadable, payload(message("behind", task="shop.note")))
    eventually(lambda: ledger.runs() == {"behind": 1})
    eventually(lambda: not db.held())
    assert not db.dead()
    assert not client.exists("celery")
    assert app.AsyncResult(f"id-{name}").state == "PENDING"


def test_no_stamp_of_a_job_ends_the_workers_to_which_it_comes(worker, app, db, client, ledger):
    """Celery before 5.7 reads stamps only once their header is revoked. What is stamped in order
    is revoked, or runs."""
    one = worker(concurrency=1)
    assert app.control.revoke_by_stamped_headers({"by": ["me"]}, reply=True, timeout=5)
    stamps = {"none": ..., "empty": {}, "list": ["by"], "mine": {"by": ["me"]}, "other": {"by": []}}
    for name, stamp in stamps.items():
        headers = {"stamped_headers": ["by"], "stamps": stamp}
        client.lpush("celery", payload(message(name, task="shop.note", headers=headers)))
    client.lpush("celery", payload(message("behind", task="shop.note")))
    eventually(lambda: "behind" in ledger.finishes() and not db.private_lists())
    assert one.alive()
    lacking = {"none", "empty"} if celery.VERSION < (5, 7) else set()
    eventually(
        lambda: {dead["task_id"] for dead in db.dead()} == {f"id-{n}" for n in {"list", *lacking}}
    )
    assert set(ledger.runs()) == {"none", "empty", "other", "behind"} - lacking
