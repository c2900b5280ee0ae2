"""One script moves so many jobs, and bytes of them, in their order."""

from __future__ import annotations

import pytest

from celery_superfetch.model.job import Job
from celery_superfetch.store.batches import MOVES_MAX_BYTES, MOVES_PER_SCRIPT, batches


def job(number: int, payload: bytes = b"", owner: str = "host|1|nonce", name: str = "mail") -> Job:
    return Job(owner, name, payload, f"{number}:{name}")


@pytest.mark.parametrize(
    ("size", "most"),
    [(1, MOVES_PER_SCRIPT), (MOVES_MAX_BYTES // 4, 4), (2 * MOVES_MAX_BYTES, 1)],
    ids=["small", "large", "huge"],
)
def test_one_script_moves_so_many_jobs_and_bytes_of_them_in_their_order(size, most):
    jobs = [job(number, b"x" * size) for number in range(2 * most)]
    groups = [*batches(jobs, lambda job: job)]
    assert [len(group) for group in groups] == [most, most]
    assert [job for group in groups for job in group] == jobs


def test_jobs_of_one_script_are_of_one_owner_and_queue_list():
    places = [("a", "mail"), ("b", "mail"), ("a", "mail"), ("a", "press")]
    jobs = [job(number, owner=owner, name=name) for number, (owner, name) in enumerate(places)]
    groups = [*batches(jobs, lambda job: job)]
    assert groups == [[jobs[0], jobs[2]], [jobs[1]], [jobs[3]]]
    assert [*batches([], lambda job: job)] == []
