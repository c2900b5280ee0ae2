"""The names of queue lists, read and written: kombu's own, also where a queue has the separator."""

from __future__ import annotations

import pytest

from celery_superfetch.model.queue_list import ListNames

STEPS = (0, 3, 6, 9)
DEFAULT = "\x06\x16"


@pytest.mark.parametrize("sep", [":", DEFAULT, "--"], ids=repr)
@pytest.mark.parametrize("queue", ["mail", "mail{}high", "mail{}", "{}mail", "mail{}5", "a{}b{}c"])
@pytest.mark.parametrize("step", STEPS)
def test_what_was_joined_is_split_again(sep, queue, step):
    names, queue = ListNames(sep, STEPS), queue.replace("{}", sep)
    assert names.split(names.of(queue, step)) == (queue, step)
    assert names.queue(names.of(queue, step)) == queue


@pytest.mark.parametrize(
    "name", ["mail:0", "mail:4", "mail:03", "mail:+3", "mail: 3", "mail:٣", ":3"]
)
def test_what_no_step_ends_is_a_queue(name):
    assert ListNames(":", STEPS).split(name) == (name, 0)


def test_a_queue_that_is_named_like_a_list_counts_as_one():
    """As in kombu: both are the same key."""
    assert ListNames(":", STEPS).split("mail:3") == ("mail", 3)
    assert ListNames(":", (0,)).split("mail:3") == ("mail:3", 0), "without priorities it is not"
