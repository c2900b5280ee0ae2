"""Seeded runs of connection troubles of every kind, on all pools: nothing lost, nothing twice.

Twenty of them: `pytest tests/evidence/test_campaign.py --runs=20`; one again: `--seed=7`.
"""

from __future__ import annotations

import random

import pytest

from support.workers.fleet import SOCKET_TIMEOUT
from support.workers.troubles import TROUBLES

#: Troubles of one run.
TROUBLES_EACH = 6

FIRST_SEED = 1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    first = metafunc.config.getoption("--seed")
    first = FIRST_SEED if first is None else first
    runs = metafunc.config.getoption("--runs")
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(first, first + runs))


def test_connection_troubles_lose_nothing_and_run_nothing_twice(make_fleet, seed):
    dice = random.Random(seed)
    told: list[str] = []
    fleet = make_fleet()
    with fleet.load(f"run{seed}", seed, every=0.04) as load:
        load.wait_progress(1)
        for name in dice.choices(list(TROUBLES), k=TROUBLES_EACH):
            told.append(name)
            TROUBLES[name](fleet, dice)
            # Sometimes the next one comes before everybody has got over this one.
            if dice.random() < 0.7:
                load.wait_progress(1, within=SOCKET_TIMEOUT * 15)
        fleet.check(load, within=90, answers=False)
    print(f"seed {seed}: {len(load.published)} jobs; {', '.join(told)}")
