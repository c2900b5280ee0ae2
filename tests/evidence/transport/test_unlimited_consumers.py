"""Consumers without a prefetch limit share what waits, as in stock."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.process import Process
from support.waiting import eventually
from support.workers.bench import payload
from support.workers.worker import process_env

MESSAGES = 24


@pytest.fixture
def two_programs(keep: Callable[[Any], Any], url: str, tmp_path: Path) -> Callable[..., list[Any]]:
    def start(*words: str) -> list[Process]:
        argv = [sys.executable, "-m", "support.apps.mixin"]
        return [
            keep(
                Process(
                    [*argv, name, *words],
                    log=tmp_path / name,
                    env=process_env({"URL": url}),
                    title=name,
                )
            )
            for name in ("one", "two")
        ]

    return start


def shares(programs: list[Process]) -> Counter[str]:
    """Who ran how many, each message once."""
    rows = [json.loads(line) for made in programs for line in made.log().splitlines()]
    runs = Counter(row["ran"] for row in rows)
    assert all(count == 1 for name, count in runs.items() if name != "first")
    return Counter(row["who"] for row in rows)


def run_all(bench: Any, programs: list[Process], series: str = "") -> Counter[str]:
    """Both have run one, so that both are there; then come the others."""

    def run(*names: str) -> Counter[str]:
        count = sum(shares(programs).values()) + len(names)
        bench.push("mail", *map(payload, names))
        eventually(lambda: sum(shares(programs).values()) == count)
        return shares(programs)

    while len(before := run("first")) < 2:
        pass
    run(*(f"{series}{number}" for number in range(MESSAGES)))
    eventually(lambda: not bench.client.keys("superfetch:private:*"), message="all were acked")
    return shares(programs) - before


def test_two_programs_without_a_limit_run_half_each(bench, two_programs):
    ran = run_all(bench, two_programs())
    assert min(ran["one"], ran["two"]) >= MESSAGES // 3


def test_the_control_one_program_claims_all_and_the_other_none(bench, two_programs):
    programs = two_programs("hoards")
    most = (max(run_all(bench, programs, f"{series}-").values()) for series in range(5))
    assert any(count > 2 * MESSAGES // 3 for count in most), "more than where each claims one"
