"""Any sequence of claims, starts, settlements, deaths and passes, on a real server: each job is in
exactly one place or settled, no strike is one too many, and no innocent is killed.

Longer: `pytest tests/evidence/test_stateful.py --runs=20`; one of them once more: `--seed=7`.
A failure prints the shortest sequence that was found, and what to decorate `made` with to see it
again. `begin`, `go_on` and `break_off` are two reapers, whose passes are stopped between what they
read and what they write; `freeze` makes an owner look dead that goes on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import Phase

from celery_superfetch.store.redis import pipeline, scripts


# A failure takes some minutes to be told: first its sequence is made as short as can be.
@pytest.mark.timeout(900)
def test_whatever_happens_no_job_is_lost_and_no_innocent_is_killed(request, play, run):
    first = request.config.getoption("--seed")
    number = random.randrange(2**32) if first is None else first + run
    print(f"--seed={number}")
    print(*(f"{count:6} {what}" for what, count in play(number).most_common()), sep="\n")


@pytest.mark.timeout(900)
def test_nor_where_a_process_stands_still_between_any_two_steps(monkeypatch, request, play):
    """Each reply that is left for later is overdue by then, and read before anything is sent."""
    monkeypatch.setattr(pipeline, "IDLE_S", 0.0)
    first = request.config.getoption("--seed")
    number = random.randrange(2**32) if first is None else first
    print(f"--seed={number}")
    play(number, max_examples=40)


#: Script, what is taken out of it, and what stands there instead. (What shows only in one order of
#: many steps is taken out where all orders are tried: test_small_model.py, test_claim_ids.py.)
CONTROLS = [
    ("recover", "if unmarked then", "if false then"),
    ("ack", "redis.call('DEL', counters)", ""),
    ("claim", "if not redis.call('ZSCORE', owners, owner) then", "if false then"),
    ("step", "if redis.call('HEXISTS', private, id) == 0 then return -1 end", ""),
    ("recover", "if steps[i] then redis.call('HSET', history, 'steps', steps[i]) end", ""),
    ("heartbeat", "redis.call('ZREM', ranks, before)", ""),
    ("claim", "if either > (counted and 1 or 0) then", "if false then"),
    ("probation", "if redis.pcall('HEXISTS', paused, queue) == 1 then return {'paused'} end", ""),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("script", "line", "other"), CONTROLS)
def test_the_control_finds_what_a_script_without_one_of_its_lines_does(
    monkeypatch, play, script, line, other
):
    source = scripts.source
    assert line in source(script)
    monkeypatch.setattr(
        scripts,
        "source",
        lambda name: source(name).replace(line, other) if name == script else source(name),
    )
    # A third of the seeds find the least visible one; the first that does ends this.
    assert not all(_passes(play, number) for number in range(3, 23))


def _passes(play: Callable[..., Counter[str]], number: int) -> bool:
    try:
        # The first failure will do: shrunk, or beside others, it says no more.
        play(number, max_examples=40, report_multiple_bugs=False, phases=[Phase.generate])
    except AssertionError:
        return False
    return True
