"""What a job's message names for its end, and how a step is known again."""

from __future__ import annotations

from typing import Any

from celery import Celery, chain, chord, group
from kombu.utils.json import dumps, loads

from celery_superfetch.model.step import ITSELF, Claim, Run, Step

CLAIM = Claim("here", "superfetch:private:one", "1:mail", 1)
app = Celery("steps", set_as_current=False)


def note(name: str = "note") -> Any:
    return app.signature(f"shop.{name}")


def sent(**embed: Any) -> Any:
    """As it is read from a message."""
    return loads(dumps(embed))


def run_of(embed: Any, task_id: str = "job") -> Run:
    run = Run(CLAIM, task_id, "shop.job")
    run.read(embed, task_id)
    return run


def test_what_has_no_id_gets_the_same_in_each_run():
    embed = {"callbacks": [note(), chain(note(), group(note(), note())), chord([note()], note())]}
    first, second = sent(**embed), sent(**embed)
    ids = run_of(first).ids
    assert run_of(second).ids == ids
    # A note, the three of the chain and their group, the chord with its part and its body.
    assert len(ids) == 1 + 4 + 3
    assert run_of(sent(**embed), "another").ids.isdisjoint(ids)
    assert first["callbacks"][0]["options"]["task_id"] in ids


def test_ids_that_are_there_stay():
    links = [note().set(task_id="next"), group(note().set(task_id="one"), note())]
    run = run_of(sent(chain=[links[1], links[0]]))
    assert {"next", "one"} < run.ids


def test_a_job_names_the_errbacks_of_its_chord():
    body = note().set(task_id="body", link_error=[note().set(task_id="errback")])
    assert run_of(sent(chord=body)).ids == {"body", "errback"}


def test_what_follows_a_body_has_the_same_ids_in_each_part():
    """Any of them may be the last, and send it."""
    body = note().set(task_id="body", link=[note()], link_error=[group(note(), note())])
    parts = [run_of(sent(chord=body), f"part {at}") for at in range(2)]
    assert parts[0].ids == parts[1].ids
    assert len(parts[0].ids) == 1 + 1 + 3


def test_a_message_without_an_end_names_nothing():
    for embed in (None, "?", {}, {"callbacks": None, "chain": [], "chord": None}):
        assert not run_of(embed).ids


def test_a_step_is_known_by_its_facts_and_its_queue():
    def known(*facts: Any, **other: Any) -> str:
        return Step(CLAIM, "shop.job[1]", "id", "shop.note", facts, **other).note("mail")

    assert known("id", None, 0) == known("id", None, 0)
    assert len({known("id", None, 0), known("id", "chord", 0), known("id", None, 1)}) == 3
    one = Step(CLAIM, "shop.job[1]", "id", "shop.note", ("id", None, 0))
    assert one.note("mail") != one.note("press")


def test_a_job_that_has_handed_itself_on_is_over():
    itself = Step(CLAIM, "", "job", "shop.job", ("job", None, 1), ITSELF).note("mail")
    other = Step(CLAIM, "", "next", "shop.note", ("next", None, 0)).note("mail")
    assert CLAIM._replace(steps=other + itself).is_over
    assert not CLAIM._replace(steps=other).is_over
