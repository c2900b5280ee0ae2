"""Orders about jobs: each is told of what became of it, and not of what became of another."""

from __future__ import annotations

from threading import RLock
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_superfetch.model.job import Job, digest
from celery_superfetch.worker import orders

#: When the orders end (server ms); two of them may begin before.
UNTIL = 2000
ONE, TWO, THREE = (Job("owner", "mail", name.encode(), name) for name in "123")


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`give(kill)`: have a worker kill three jobs by ``kill``, and know what it answers of each."""

    def give(kill: Any) -> dict[str, dict[str, Any]]:
        in_flight = SimpleNamespace(lock=RLock(), jobs=[ONE, TWO, THREE])
        database = SimpleNamespace(server_time=lambda: UNTIL - 500)
        membership = SimpleNamespace(owner="owner", in_flight=in_flight, database=database)
        monkeypatch.setattr(orders, "memberships_of", lambda _: [membership])
        monkeypatch.setattr(orders, "kill", kill)
        state = SimpleNamespace(consumer=SimpleNamespace(controller=None))
        names = {digest(job.payload): job.claim_id for job in (ONE, TWO, THREE)}
        told = orders.carry_out(state, owner="owner", until=UNTIL, what="kill", jobs=[*names])
        return {names[name]: answer for name, answer in told["jobs"].items()}

    return give


def test_what_would_begin_too_late_is_left_undone(
    give: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gave the order is about to be told that nothing was done."""
    clock = iter([10.0, 10.1, 10.4, 10.6])
    monkeypatch.setattr(orders, "monotonic", lambda: next(clock))
    killed: list[Job] = []
    told = give(lambda _, job: {"dead_id": killed.append(job)})
    assert killed == [ONE, TWO]
    assert "ok" in told["1"]
    assert told["3"] == {"error": orders.LATE}


def test_a_server_that_fails_at_one_job_hides_nothing_of_the_others(give: Any) -> None:
    def kill(_: Any, job: Job) -> dict[str, str]:
        if job == TWO:
            raise RedisConnectionError("gone")
        return {"dead_id": job.claim_id}

    told = give(kill)
    assert [told[name].get("ok") for name in "123"] == [{"dead_id": "1"}, None, {"dead_id": "3"}]
    assert "gone" in told["2"]["error"]
    assert "may have done it" in told["2"]["error"]
