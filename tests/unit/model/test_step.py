"""What a job's message names for its end, and how a step is known again."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, chord, group
from kombu.utils.json import dumps, loads

from celery_superfetch.model.step import FOLLOWING, Claim, Run, Step, ids_of, seed_of, was_published

CLAIM = Claim("here", "superfetch:private:one", "1:mail", 1)
app = Celery("steps", set_as_current=False)


def note(name: str = "note") -> Any:
    return app.signature(f"shop.{name}")


def sent(**embed: Any) -> Any:
    """As it is read from a message."""
    return loads(dumps(embed))


def run_of(embed: Any = (), seed: str = "tag job", **claim: Any) -> Run:
    """A run that has begun to publish what follows it."""
    run = Run(CLAIM._replace(**claim), "job", "shop.job[job]", seed=seed)
    for name in FOLLOWING:
        if name in embed:
            run.followers(name, embed[name])
    return run


def name_of(step: Step | None) -> str:
    assert step is not None
    return step.name()


def published(run: Run) -> set[str]:
    """The ids of what the run may publish."""
    return set(run._steps)


def test_what_has_no_id_gets_the_same_in_each_run_of_a_message():
    embed = {"callbacks": [note(), chain(note(), group(note(), note())), chord([note()], note())]}
    first, second = sent(**embed), sent(**embed)
    ids = published(run_of(first))
    assert published(run_of(second)) == ids
    assert len(ids) == 1 + 1 + 1, "a note, the first of the chain, the part of the chord"
    assert published(run_of(sent(**embed), "another tag job")).isdisjoint(ids)


def test_the_task_sees_none_of_these_ids():
    """What it publishes by hand, or with its retry, would share them."""
    embed = sent(callbacks=[note(), chord([note()], note())], chain=[note(), note()], chord=note())
    before = dumps(embed)
    run = run_of(embed)
    assert len(published(run)) == 1 + 1 + 1 + 1
    assert dumps(embed) == before


def test_ids_that_are_there_stay():
    links = [note().set(task_id="next"), group(note().set(task_id="one"), note())]
    assert {"next", "one"} < published(run_of(sent(callbacks=links)))


@pytest.mark.parametrize("other", [{}, {"delivery_tag": 7}, {"delivery_tag": "tag"}])
def test_the_seed_is_that_of_the_message_and_not_of_its_task_id(other):
    one = seed_of({"delivery_tag": "another"}, "report-7")
    assert one != seed_of(other, "report-7")
    assert seed_of(other, "report-7") != seed_of(other, "report-8"), "tags may all be the same"


def test_a_part_of_a_chord_publishes_its_body_or_the_errbacks_of_that():
    body = note().set(task_id="body", link_error=[note().set(task_id="errback")])
    assert published(run_of(sent(chord=body))) == {"body", "errback"}
    later = note().set(task_id="later", chord=body)
    found = published(run_of(sent(chain=[later, note().set(task_id="next")])))
    assert found == {"next", "body", "errback"}


def test_of_a_chain_only_the_next_link_gets_an_id():
    links = sent(chain=[note() for _ in range(600)])["chain"]
    found = run_of().followers("chain", links)
    assert found[:-1] == links[:-1]
    assert found[-1]["options"]["task_id"]


def test_a_message_without_an_end_names_nothing():
    for embed in ({}, {"callbacks": None, "chain": [], "chord": None}, {"callbacks": "?"}):
        assert not published(run_of(embed))


def test_what_celery_cannot_read_is_left_to_celery():
    odd = [{"options": 7}]
    assert run_of().followers("callbacks", odd) is odd


def test_of_twins_each_is_a_step_of_its_own_in_each_run():
    twin = note().set(task_id="twin")
    embed = sent(callbacks=[group(twin, twin)])
    names = []
    for _ in range(2):
        run = run_of(embed)
        names.append([name_of(run.step("twin", "shop.note", of_end=True)) for _ in range(3)])
    assert names[0] == names[1]
    assert len(set(names[0])) == 3


def test_a_message_by_which_a_run_is_repeated_is_the_one_of_the_same_number():
    runs = run_of(), run_of()
    names = [[name_of(run.step("job", "shop.job", of_end=False)) for _ in range(5)] for run in runs]
    assert names[0] == names[1]
    assert len(set(names[0])) == 5


def test_a_part_of_another_chord_is_another_step():
    embed = sent(callbacks=[note().set(task_id="part")])
    one, other = run_of(embed), run_of(embed)
    assert name_of(one.step("part", "shop.note", "chord 1", of_end=True)) != name_of(
        other.step("part", "shop.note", "chord 2", of_end=True)
    )


def test_what_goes_to_several_queues_is_a_step_in_each():
    step = run_of().step("job", "shop.job", of_end=False)
    assert step
    assert len({step.name(queue) for queue in ("", "mail", "press")}) == 3


def test_what_the_message_does_not_name_is_no_step():
    assert run_of().step("another", "shop.note", of_end=True) is None


def test_a_steps_note_has_ranges_of_numbers():
    steps = "aa:0-7;bb:3-3;aa:9-12;!"
    found = [f"aa:{n}" for n in range(14) if was_published(steps, f"aa:{n}")]
    assert found == [f"aa:{n}" for n in (*range(8), *range(9, 13))]
    assert was_published(steps, "bb:3")
    assert not was_published(steps, "cc:3")
    assert not was_published("", "aa:0")


def test_a_job_that_has_ended_with_its_retry_is_over():
    assert CLAIM._replace(steps="aa:1-1;!").is_over
    assert not CLAIM._replace(steps="aa:1-5;").is_over


def test_ids_of_a_signature_are_those_of_its_parts():
    one, two, three = (note().set(task_id=str(n)) for n in range(3))
    assert ids_of(chain(one, group(two, three))) >= {"0", "1", "2"}
    assert ids_of(None) == frozenset()
