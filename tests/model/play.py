"""The state machine as a fixture: `play(seed)`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_superfetch.model.strikes import Decision, Recovery, decide
from celery_superfetch.signals import job_recovering
from model.cast import Stage
from model.machine import SENDER, Fleet
from support.workers.bench import Bench

#: Examples of one run, and steps of one example.
EXAMPLES, STEPS = 100, 50


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
