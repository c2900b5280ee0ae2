"""The right to come to rest for what is on probation, and a purge of it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_superfetch.model.job import digest
from celery_superfetch.store.queues import MESSAGES_MAX_BYTES, QuiesceAnswer, Suspects
from support.servers.commands import calls
from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import Inbox

#: Seconds of the first rest, long enough to look at it, or over at once.
LONG, SHORT = 60.0, 0.001
#: How many times as long nobody rests after it: long enough to look, or not for long.
MUCH, LITTLE = 1000, 1


@pytest.fixture
def suspect(bench: Bench) -> bytes:
    """It waits for its turn."""
    wait(bench, "mail", payload("suspect"))
    return payload("suspect")


def wait(bench: Bench, queue: str, job: bytes) -> None:
    bench.client.lpush(bench.keys.probation(queue), job)
    bench.client.sadd(bench.keys.on_probation, queue)
    bench.client.hset(bench.keys.history(digest(job)), "solo_runs", 1)


def room_for(
    bench: Bench, owner: str, *queues: str, first: float = LONG, work: int = MUCH
) -> QuiesceAnswer:
    """As `Probation` asks."""
    return Suspects(bench.database).ask_quiesce(owner, queues, first, work)


def ask(bench: Bench, owner: str, *queues: str, **times: Any) -> int:
    """1 it rests, 0 it may not, -1 nothing waits."""
    room = room_for(bench, owner, *queues, **times)
    return -1 if room.no_suspects else int(room.quiesces)


def rest(bench: Bench, field: str) -> int:
    found: Any = bench.client.hget(bench.keys.quiesce, field)
    return int(found)


def test_one_owner_of_a_database_rests_at_a_time(bench, suspect):
    """C2: it was one for each queue list."""
    wait(bench, "post", payload("another"))
    assert ask(bench, "a", "mail") == 1
    assert ask(bench, "b", "mail") == 0
    assert ask(bench, "b", "post", "mail") == 0
    assert ask(bench, "a", "mail") == 1, "it goes on"
    assert rest(bench, "until") - rest(bench, "since") == LONG * 1000
    kept = bench.client.pttl(bench.keys.quiesce) / (LONG * 1000)
    assert 1 < kept <= 1 + 2 * MUCH, "remembered beyond its end, and not for ever"


def test_the_next_rest_is_twice_as_long_and_some_time_later(bench, suspect):
    """C2: who rested in vain went on for ever."""
    assert ask(bench, "a", "mail", first=SHORT) == 1
    first = rest(bench, "until")
    eventually(lambda: bench.database.server_time() > first)
    assert ask(bench, "a", "mail", first=SHORT) == 0, "it goes back to work"
    assert bench.driver.claim_suspect_alongside(bench.owner().owner, "mail"), "one need not wait"
    wait(bench, "mail", payload("another"))
    eventually(lambda: ask(bench, "b", "mail", first=SHORT, work=LITTLE))
    assert rest(bench, "since") >= first + LITTLE * 1000, "a rest costs a second at least"
    assert rest(bench, "until") - rest(bench, "since") == 2 * SHORT * 1000


def test_a_suspect_for_which_a_quiesce_was_in_vain_runs_alongside_others_at_once(bench, suspect):
    me, later = bench.owner().owner, payload("later")
    assert bench.driver.claim_suspect_alongside(me, "mail") is None, "the control: it has to wait"
    assert not room_for(bench, "a", "mail", first=SHORT).alongside
    eventually(lambda: bench.database.server_time() > rest(bench, "until"))
    assert not room_for(bench, "b", "mail", first=SHORT).alongside, "the owner itself says so"
    assert room_for(bench, "a", "mail", first=SHORT) == QuiesceAnswer(False, False, True)
    wait(bench, "mail", later)
    assert room_for(bench, "b", "mail").alongside
    claimed = bench.driver.claim_suspect_alongside(me, "mail")
    assert claimed.job.payload == suspect
    assert bench.driver.claim_suspect_alongside(me, "mail") is None, (
        "another has to wait for its own"
    )
    assert bench.recorded(bench.owner(register=False).with_(owner=me)) == [digest(suspect)]
    # It is recovered, and goes on as before: nobody quiesces for it again.
    assert bench.requeue(claimed.job) == 1
    assert bench.on_probation() == [suspect, later]
    assert room_for(bench, "b", "mail") == QuiesceAnswer(False, False, True)
    assert bench.client.ttl(bench.keys.history(digest(suspect))) > 0


def test_a_rest_ends_when_a_suspect_had_its_turn_and_the_next_is_a_first_one(bench, suspect):
    assert ask(bench, "a", "mail") == 1
    assert rest(bench, "next") == 2 * LONG * 1000
    eventually(lambda: bench.database.server_time() > rest(bench, "since"))
    before = rest(bench, "until")
    assert ask(bench, "b") == -1
    assert rest(bench, "until") == before, "nobody ends another's"
    ask(bench, "a")
    assert rest(bench, "until") <= bench.database.server_time()
    assert rest(bench, "next") == LONG * 1000
    assert ask(bench, "a", "mail") == 0, "what it took counts"
    eventually(lambda: ask(bench, "b", "mail", work=LITTLE), message="and no more than that")


def test_a_rest_that_is_over_has_served_its_end_only_where_its_owner_says_so(bench, suspect):
    assert ask(bench, "a", "mail", first=SHORT) == 1
    eventually(lambda: bench.database.server_time() > rest(bench, "until"))
    before = bench.client.hgetall(bench.keys.quiesce)
    bench.client.delete(bench.keys.probation("mail"))
    assert ask(bench, "a", "mail", first=SHORT) == -1, "somebody who was idle took it"
    assert ask(bench, "b", first=SHORT) == -1
    assert bench.client.hgetall(bench.keys.quiesce) == before
    assert ask(bench, "a", first=SHORT) == -1
    assert rest(bench, "next") == SHORT * 1000, "the next is a first one"
    assert rest(bench, "until") > int(before[b"until"])


def test_nobody_rests_for_an_empty_list(bench, suspect):
    """C2: a purge left its member in the set."""
    bench.client.sadd(bench.keys.on_probation, "post")
    assert ask(bench, "a", "post") == -1
    assert not bench.client.exists(bench.keys.quiesce)
    assert bench.client.smembers(bench.keys.on_probation) == {b"mail"}
    assert ask(bench, "a", "mail") == 1
    bench.client.delete(bench.keys.probation("mail"))  # somebody who was idle took it
    assert ask(bench, "a", "mail") == -1
    assert rest(bench, "until") <= bench.database.server_time()
    assert not bench.client.exists(bench.keys.on_probation)


def test_a_clock_that_was_set_back_keeps_nobody_from_rest(bench, suspect):
    hour = bench.database.server_time() + 3_600_000
    latest = {"owner": "a", "since": hour, "until": hour + 1, "next": 7_200_000}
    bench.client.hset(bench.keys.quiesce, mapping=latest)
    assert ask(bench, "b", "mail") == 1
    assert rest(bench, "until") - rest(bench, "since") == LONG * 1000


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_a_purge_leaves_nothing_of_a_queues_suspects(url, make_bench, prefix):
    """C2: the member in the set stayed, and owners came to rest for it."""
    bench = make_bench(global_keyprefix=prefix)
    wait(bench, "mail", payload("suspect"))
    wait(bench, "mail\x06\x163", payload("urgent"))
    wait(bench, "post", payload("another"))
    with Inbox(url, consume=False, global_keyprefix=prefix) as inbox:
        assert inbox.channel.queue_purge("mail") == 2
    assert bench.client.smembers(bench.keys.on_probation) == {b"post"}
    assert not bench.on_probation()


def in_vain(bench: Bench, jobs: int, size: int = 1) -> tuple[list[str], QuiesceAnswer]:
    """So many suspects of each of ten lists, and a quiesce for them that was in vain."""
    names = [f"queue-{number}" for number in range(10)]
    for name in names:
        for number in range(jobs):
            wait(bench, name, payload(number, name) + b" " * size)
    room_for(bench, "a", *names, first=SHORT, work=LITTLE)
    before = calls(bench.client, "lindex")
    rooms = [QuiesceAnswer(False, True, False)]

    def is_over() -> bool:
        rooms.append(room_for(bench, "a", *names, first=SHORT, work=LITTLE))
        return rooms[-1].alongside

    eventually(is_over)
    assert calls(bench.client, "lindex") - before <= (len(rooms) - 1) * (100 + len(names))
    return names, rooms[-1]


def freed(bench: Bench, names: list[str]) -> list[int]:
    """How many suspects of each list may run alongside others."""
    counts = []
    for name in names:
        jobs = bench.client.lrange(bench.keys.probation(name), 0, -1)
        histories = [bench.keys.history(digest(job)) for job in jobs]
        counts.append(sum(bench.client.hexists(history, "quiesced") for history in histories))
    return counts


def test_one_script_frees_no_more_suspects_of_many_lists_than_of_one(bench):
    names, _ = in_vain(bench, 30)
    assert freed(bench, names) == [10] * 10


def test_one_script_reads_no_more_bytes_of_suspects_than_it_has_room_for(bench):
    names, room = in_vain(bench, 1, MESSAGES_MAX_BYTES // 3)
    assert room.alongside
    assert 1 <= sum(freed(bench, names)) <= 3
