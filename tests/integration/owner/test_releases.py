"""Of parked jobs whose time has come so many go at once that nobody else waits long."""

from __future__ import annotations

from typing import Any

from celery_superfetch.store.parked_jobs import (
    EARLY_MS,
    PARKED_MAX_BYTES,
    PARKED_PER_SCRIPT,
    RELEASE_LISTS,
    ParkedJobs,
)
from support.workers.bench import Bench, payload

HOUR = 3_600_000.0  # ms


def release(bench: Bench, most: int = PARKED_PER_SCRIPT, room: int = PARKED_MAX_BYTES) -> list[Any]:
    """One script: how many went, whether more are due, the time, and when the next is due."""
    names = [bench.keys.parked, bench.keys.has_history, bench.keys.on_probation]
    kinds = bench.keys.parked_of, bench.keys.queue, bench.keys.probation, bench.keys.history
    args = [EARLY_MS, most, room, RELEASE_LISTS, *(kind("") for kind in kinds)]
    return bench.scripts.run("release", names, args)


def test_what_is_due_in_one_list_does_not_wait_for_thousands_in_another(bench):
    parked = ParkedJobs(bench.database)
    for name, count in (("full", 30 * PARKED_PER_SCRIPT), ("mail", 1)):
        rows = {f'"{n}" x-{n}\n'.encode() + payload(n, name): 1.0 for n in range(count)}
        bench.client.zadd(bench.keys.parked_of(name), rows)
        bench.client.zadd(bench.keys.parked, {name: 1})
    release(bench)
    release(bench)
    assert len(bench.queue()) == 1, "the list with more is behind the other after one script"
    assert parked.release({}).jobs == 29 * PARKED_PER_SCRIPT - (PARKED_PER_SCRIPT - 1)
    assert len(bench.queue("full")) == 30 * PARKED_PER_SCRIPT


def test_one_script_moves_no_more_than_so_many_jobs_and_bytes(bench):
    """It keeps everybody else waiting. One that is larger goes all the same, and alone. The latest
    goes first: in front of it comes what the next script moves."""
    rows = {f'"{n}" x-{n}\n'.encode() + payload(n): float(n + 1) for n in range(9)}
    size = len(next(iter(rows)))
    bench.client.zadd(bench.keys.parked_of("mail"), rows)
    bench.client.zadd(bench.keys.parked, {"mail": 1, "purged": 0})
    for most, room, count, left in (
        (3, PARKED_MAX_BYTES, 3, 6), (9, 1, 1, 5), (9, 2 * size, 2, 3), (9, size + 1, 2, 1),
        (9, PARKED_MAX_BYTES, 1, 0),
    ):  # fmt: skip
        moved, unfinished, now, first, _ = release(bench, most, room)
        assert (moved, bench.client.zcard(bench.keys.parked_of("mail"))) == (count, left)
        assert unfinished == bool(left)
        assert first == (now if left else None), "at once; and behind what other lists have due"
    assert bench.queue() == [payload(n) for n in range(9)]
    assert not bench.client.exists(bench.keys.parked)


def test_a_release_tells_when_the_next_is_due(bench):
    later = float(int(bench.database.server_time() + HOUR))
    for queue, times in {"mail": (1.0, later), "post": (later + 1,)}.items():
        rows = {f'"{at}" x-1\n'.encode() + payload(at): at for at in times}
        bench.client.zadd(bench.keys.parked_of(queue), rows)
        bench.client.zadd(bench.keys.parked, {queue: times[0]})
    moved, unfinished, _, first, _ = release(bench)
    assert (moved, unfinished, float(first)) == (1, 0, later)
    assert bench.parked.next_due(["mail", "post"]) == {"mail": later, "post": later + 1}


def test_of_thousands_due_in_a_moment_few_go_before_their_time(bench):
    """They wait in the memory of whoever claims them; what is due already all goes."""
    soon, late = bench.database.server_time() + EARLY_MS - 100, 1
    for first, due in ((0, soon), (1000, late)):
        rows = {f'"{n}" x-{n}\n'.encode() + payload(n): due for n in range(first, first + 1000)}
        bench.client.zadd(bench.keys.parked_of("mail"), rows)
    bench.client.zadd(bench.keys.parked, {"mail": late})
    assert ParkedJobs(bench.database).release({}).jobs == 1000 + PARKED_PER_SCRIPT
    assert bench.client.zcount(bench.keys.parked_of("mail"), soon, soon) == 1000 - PARKED_PER_SCRIPT


def test_what_is_due_in_thousands_of_lists_goes_in_one_look(bench):
    names = [f"queue-{number}" for number in range(2 * RELEASE_LISTS + 7)]
    for name in names:
        bench.client.zadd(bench.keys.parked_of(name), {f"id\n{name}": 1})
    bench.client.zadd(bench.keys.parked, dict.fromkeys(names, 1))
    assert ParkedJobs(bench.database).release({}).jobs == len(names)
    assert all(bench.queue(name) == [name.encode()] for name in names)


def due_in(bench: Bench, lists: int, jobs: int, size: int = 0) -> list[str]:
    """Park so many due jobs, of so many bytes more, in each of so many queue lists."""
    names = [f"queue-{number}" for number in range(lists)]
    for name in names:
        rows = {f'"{n}" x-{n}\n'.encode() + payload(n, name) + b" " * size: 1 for n in range(jobs)}
        bench.client.zadd(bench.keys.parked_of(name), rows)
    bench.client.zadd(bench.keys.parked, dict.fromkeys(names, 1))
    return names


def moved(bench: Bench, names: list[str]) -> list[int]:
    return [int(bench.client.llen(bench.keys.queue(name))) for name in names]


def test_a_script_moves_no_more_from_many_lists_than_from_one(bench):
    names = due_in(bench, 300, 10)
    assert release(bench)[0] == PARKED_PER_SCRIPT
    assert sum(moved(bench, names)) == PARKED_PER_SCRIPT, "formerly as many of each list"
    while release(bench)[0]:
        assert max(moved(bench, names)) <= 10
    assert moved(bench, names) == [10] * len(names)


def test_a_script_moves_no_more_bytes_from_many_lists_than_from_one(bench):
    names = due_in(bench, 20, 3, PARKED_MAX_BYTES // 4)
    assert release(bench)[0] == 4, "what goes over the limit goes alone"
    assert ParkedJobs(bench.database).release({}).jobs == 20 * 3 - 4
    assert moved(bench, names) == [3] * len(names)


def test_lists_that_have_much_due_are_released_in_turn(bench):
    names = due_in(bench, 3, 3 * PARKED_PER_SCRIPT)
    counts = []
    for _ in range(3):
        release(bench)
        counts.append(moved(bench, names))
    assert sorted(counts[-1]) == [PARKED_PER_SCRIPT] * 3, counts


def test_lists_that_can_take_no_job_keep_no_other_one_waiting(bench):
    """They are those whose job is due longest, and one script looks at no more than so many."""
    names = due_in(bench, RELEASE_LISTS + 1, 1)
    *odd, last = names
    bench.client.mset({bench.keys.queue(name): "no queue" for name in odd})
    bench.client.zadd(bench.keys.parked, {last: 2})
    assert ParkedJobs(bench.database).release({}).jobs == 1
    assert moved(bench, [last]) == [1]
