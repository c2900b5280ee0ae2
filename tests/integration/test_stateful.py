"""Any sequence of claims, starts, settlements, deaths and passes, on a real server: each job is in
exactly one place or settled, no strike is one too many, and no innocent is killed.

Longer: `pytest tests/integration/test_stateful.py --runs=20`; one of them once more: `--seed=7`.
A failure prints the shortest sequence that was found, and what to decorate `made` with to see it
again. `begin`, `go_on` and `break_off` are two reapers, whose passes are stopped between what they
read and what they write; `freeze` makes an owner look dead that goes on.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_superfetch.model.strikes import Decision, Recovery, decide
from celery_superfetch.signals import job_recovering
from celery_superfetch.store.wire import scripts
from model.cast import Stage
from model.machine import SENDER, Fleet
from support.workers.bench import Bench

pytestmark = pytest.mark.slow

#: Examples of one run, and steps of one example.
EXAMPLES, STEPS = 100, 50


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run" in metafunc.fixturenames:
        metafunc.parametrize("run", range(metafunc.config.getoption("--runs")))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    def guard(recovery: Recovery, **_: Any) -> Decision:
        return decide(recovery)

    job_recovering.connect(guard, sender=SENDER, weak=False)
    yield Stage(monkeypatch)
    job_recovering.disconnect(guard, sender=SENDER)


@pytest.fixture
def play(
    stage: Stage, make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> Callable[..., Counter[str]]:
    """`play(seed)`: let it happen; how often what happened."""
    caplog.set_level(logging.CRITICAL, logger="celery_superfetch")
    notable: Counter[str] = Counter()

    def made() -> Fleet:
        return Fleet(stage, make_bench, notable)

    def run(number: int, **options: Any) -> Counter[str]:
        run_state_machine_as_test(
            seed(number)(made),
            settings=settings(
                stateful_step_count=STEPS,
                deadline=None,
                print_blob=True,
                database=None,
                suppress_health_check=list(HealthCheck),
                **{"max_examples": EXAMPLES, **options},
            ),
        )
        return notable

    return run


# A failure takes some minutes to be told: first its sequence is made as short as can be.
@pytest.mark.timeout(900)
def test_whatever_happens_no_job_is_lost_and_no_innocent_is_killed(
    request: pytest.FixtureRequest, play: Callable[..., Counter[str]], run: int
) -> None:
    first = request.config.getoption("--seed")
    number = random.randrange(2**32) if first is None else first + run
    print(f"--seed={number}")
    print(*(f"{count:6} {what}" for what, count in play(number).most_common()), sep="\n")


#: Script -> what is taken out of it, and what stands there instead.
CONTROLS = {
    "recover": ("if unmarked then", "if false then"),
    "ack": ("if there then redis.call('DEL', KEYS[key]) end", ""),
    "requeue": ("if number > 0 and tonumber", "if false and tonumber"),
}


@pytest.mark.parametrize("script", CONTROLS)
def test_the_control_finds_what_a_script_without_one_of_its_lines_does(
    monkeypatch: pytest.MonkeyPatch, play: Callable[..., Counter[str]], script: str
) -> None:
    source, (line, other) = scripts.source, CONTROLS[script]
    assert line in source(script)
    monkeypatch.setattr(
        scripts,
        "source",
        lambda name: source(name).replace(line, other) if name == script else source(name),
    )
    assert not all(_passes(play, number) for number in range(3, 8)), "most seeds find it"


def _passes(play: Callable[..., Counter[str]], number: int) -> bool:
    try:
        play(number, phases=[Phase.generate])
    except AssertionError:
        return False
    return True
