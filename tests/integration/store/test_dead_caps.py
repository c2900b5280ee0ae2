"""What is too old, and more than the caps allow, leaves the dead set and is counted."""

from __future__ import annotations

from collections import Counter

import pytest

from celery_superfetch.model.strikes import Counters
from celery_superfetch.store.dead_caps import JUNK_LIMIT
from celery_superfetch.store.dead_set import DEAD_BATCH
from support.workers.bench import Bench, payload, trimmed


def test_trimming_drops_what_is_too_old_and_counts_it(make_bench, bench):
    old, new = bench.killed(payload("old"), payload("new"))
    assert trimmed(bench.dead_set) == (0, 0)
    short = make_bench(dead_ttl=100).dead_set
    bench.die_at(old, old.died_at - 101_000)
    assert trimmed(short) == (1, 0)
    assert [job.id for job in bench.dead_set.find()] == [new.id]
    assert [job.id for job in bench.untold()] == [new.id]
    assert bench.stat("dead_dropped") == 1


def test_the_cap_drops_the_oldest_and_counts_it(make_bench):
    bench = make_bench(dead_limit=3)
    for n in range(5):
        [job] = bench.killed(payload(n))
        bench.die_at(job, 1000 + n)
    assert [job.task_id for job in bench.dead_set.find()] == ["4", "3", "2"]
    assert bench.stat("dead_dropped") == 2
    assert bench.client.hlen(bench.keys.dead_jobs) == 3
    assert {job.task_id for job in bench.untold()} == {"2", "3", "4"}


def test_junk_has_a_cap_of_its_own(bench):
    """It must not push out what can be retried."""
    [job] = bench.killed(payload("id-1"))
    bench.die_at(job, 1)  # the oldest of all
    for one in bench.give("h|1|n", "mail", [b"junk %d" % n for n in range(JUNK_LIMIT + 5)]):
        recovery = bench.recovery(one, Counters())
        assert bench.run(bench.dead_set.kill_call(recovery, marked=False, notice=b""))[0] == b"ok"
    assert bench.client.zcard(bench.keys.dead_junk) == JUNK_LIMIT
    assert len(bench.dead_set) == JUNK_LIMIT + 1
    assert bench.dead_set.get(job.id).payload == payload("id-1")
    assert bench.stat("dead_dropped") == 5


def test_the_one_that_comes_is_not_the_one_that_goes(make_bench):
    """However early it died, by a clock that was set back, or in the same millisecond."""
    bench = make_bench(dead_limit=1)
    for n in range(5):
        [job] = bench.killed(payload(n))
        bench.die_at(job, 2 * job.died_at)
    assert [job.task_id for job in bench.dead_set.find()] == ["4"]


def of_each_app(bench: Bench) -> dict[str, int]:
    return dict(Counter(job.app_name if job.parsed else "junk" for job in bench.dead_set.find()))


def test_the_caps_of_one_app_leave_anothers_jobs_alone(make_bench):
    """E5. One with a cap of 100 cut the 300 of another on its database to 100."""
    shop = make_bench(dead_limit=30)
    blog = make_bench(app_name="blog", dead_limit=5, dead_ttl=100)
    for job in shop.killed(*(payload(n) for n in range(30))):
        shop.die_at(job, job.died_at - 101_000)
    blog.killed(*(payload(f"blog {n}") for n in range(8)), *(b"junk %d" % n for n in range(7)))
    assert of_each_app(blog) == {"shop": 30, "blog": 5, "junk": 7}
    assert trimmed(shop.dead_set) == (0, 0), "who drops them tells of it"
    assert trimmed(blog.dead_set) == (0, 3)
    assert of_each_app(blog) == {"shop": 30, "blog": 5, "junk": 7}
    assert trimmed(make_bench(app_name="blog", dead_limit=2).dead_set) == (0, 3)
    assert trimmed(make_bench(dead_limit=20, dead_ttl=1000).dead_set) == (0, 10)
    assert of_each_app(blog) == {"shop": 20, "blog": 2, "junk": 7}
    [other] = shop.killed(payload("another"))
    assert trimmed(make_bench(dead_ttl=100).dead_set) == (20, 0)
    assert of_each_app(blog) == {"shop": 1, "blog": 2, "junk": 7}
    assert shop.dead_set.get(other.id).app_name == "shop"


def test_who_kills_a_job_of_another_app_caps_nothing(make_bench):
    """E5. A receiver of the user's may answer KILL for any app's."""
    shop, blog = make_bench(dead_limit=3), make_bench(app_name="blog", dead_limit=1)
    for n in range(4):
        [job] = blog.give("h|1|n", "mail", [payload(n)])
        recovery = blog.recovery(job, app_name="shop")
        assert blog.run(blog.dead_set.kill_call(recovery, marked=False, notice=b""))[0] == b"ok"
    assert trimmed(blog.dead_set) == (0, 0)
    assert of_each_app(blog) == {"shop": 4}
    assert trimmed(shop.dead_set) == (0, 1)


@pytest.mark.parametrize("app_name", ["", "shop:dead", "a{b}", "schön"])
def test_an_app_of_any_name_leaves_nothing(make_bench, app_name):
    """E5. Whatever takes a job away by its id alone finds where it is counted."""
    bench = make_bench(app_name=app_name, dead_limit=5)
    junk, _ = bench.killed(b"junk", b"more junk")
    bench.killed(*(payload(n) for n in range(7)))
    jobs = [job for job in bench.dead_set.find() if job.parsed]
    assert bench.client.zcard(bench.keys.dead_of(app_name)) == len(jobs) == 5
    assert bench.retry(jobs[0])
    assert bench.retry(junk)
    assert bench.dead_set.delete(jobs[1].id) == 1
    assert bench.client.zcard(bench.keys.dead_of(app_name)) == 3
    assert trimmed(make_bench(app_name=app_name, dead_limit=1).dead_set) == (0, 2 + 2)
    assert bench.dead_set.purge() == 2
    assert not [name for name in bench.key_names() if name.startswith(bench.keys.dead)]


def test_what_the_cap_drops_is_told_once(make_bench):
    bench = make_bench(dead_limit=3)
    bench.killed(*(payload(n) for n in range(5)))
    assert trimmed(bench.dead_set) == (0, 2)
    assert trimmed(bench.dead_set) == (0, 0)
    assert bench.stat("dead_dropped") == 2
    assert not bench.client.exists(bench.keys.dead_dropped("shop"))


def test_a_lowered_limit_is_reached_a_batch_at_a_time(make_bench, bench):
    jobs = bench.killed(*(payload(n) for n in range(DEAD_BATCH + 7)))
    for at, job in enumerate(jobs):
        bench.die_at(job, job.died_at - 1000 + at)
    low = make_bench(dead_limit=2).dead_set
    assert [trimmed(low) for _ in range(3)] == [(0, DEAD_BATCH), (0, 5), (0, 0)]
    assert [job.id for job in bench.dead_set.find()] == [jobs[-1].id, jobs[-2].id]
    assert bench.stat("dead_dropped") == DEAD_BATCH + 5


def test_a_pass_logs_what_the_caps_drop(make_bench, caplog):
    bench = make_bench(dead_limit=2, dead_ttl=100)
    bench.killed(*(payload(n) for n in range(3)))
    [job, _] = bench.dead_set.find()
    bench.die_at(job, job.died_at - 101_000)
    bench.reaper().reap()
    assert "Jobs older than dead_ttl were deleted from the dead set (jobs=1," in caplog.text
    assert "The dead set is full: its oldest jobs were deleted (jobs=1," in caplog.text
    caplog.clear()
    bench.reaper().reap()
    assert "dropped" not in caplog.text


def test_large_jobs_are_read_in_several_replies(own):
    """What its size kills lies there a hundred times, and a reply takes the server's memory."""
    bench = Bench(own)
    jobs = bench.killed(*(payload(n, pad="x" * 2**20) for n in range(40)))
    used = own.info("memory")["used_memory"]
    assert [job.id for job in bench.dead_set.page(0, 40)] == [job.id for job in jobs[::-1]]
    assert own.info("memory")["used_memory_peak"] - used < 20 * 2**20


def test_where_the_server_takes_no_write_dead_jobs_are_read_all_the_same(own):
    """After a failover of two, say, when somebody looks what has happened."""
    bench = Bench(own)
    [job] = bench.killed(payload("1"))
    own.config_set("min-replicas-to-write", 1)
    assert bench.dead_set.page() == [job] == [bench.dead_set.exact(job.id)]
