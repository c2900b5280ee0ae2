"""Unknown owners: `reap --full` and `rollback` register them, and no job moves by that."""

from __future__ import annotations

import pytest

from celery_superfetch.model.verdict import Reason
from celery_superfetch.reaper.evidence import Onlooker


def test_an_unknown_private_list_is_registered_and_never_drained_at_once(bench):
    stranger = "web-9|4|0123456789ab"
    bench.give(stranger, "a:b", [b"1"])
    assert bench.reaper().register_unknown() == 1
    report = bench.reaper().reap()
    assert (report.recovered, report.dead) == (0, {})
    assert bench.private(stranger, "a:b") == [b"1"]
    assert set(bench.registry.owners()) == {stranger}
    assert bench.reaper().register_unknown() == 0
    assert not bench.reaper().reap().did_something


def test_an_adopted_owner_is_reaped_after_the_ttl(make_bench):
    bench = make_bench(heartbeat_interval=0.1, owner_ttl=0.4, reap_interval=0.1)
    bench.give("web-9|4|x", "mail", [b"1"])
    reaper, onlooker = bench.reaper(), Onlooker(bench.registry)
    assert reaper.register_unknown() == 1
    onlooker.watch(10)
    assert bench.reaper(staleness=onlooker.staleness).reap().dead == {"web-9|4|x": Reason.SILENT}
    assert bench.queue() == [b"1"]


def test_one_for_whom_something_landed_is_registered_too(make_bench):
    bench = make_bench(heartbeat_interval=0.1, owner_ttl=0.4, reap_interval=0.1)
    bench.land("web-9|4|x", "a:b", b"1", b"2")
    reaper, onlooker = bench.reaper(), Onlooker(bench.registry)
    assert reaper.register_unknown() == 1
    assert bench.registry.records(["web-9|4|x"])["web-9|4|x"].lists == {"a:b": 0}
    onlooker.watch(10)
    bench.reaper(staleness=onlooker.staleness).reap()
    assert bench.queue("a:b") == [b"1", b"2"]


@pytest.mark.parametrize("kind", ["private", "landing"])
def test_jobs_of_a_reaped_owner_are_found_after_its_row_was_deleted(bench, kind):
    """A frozen worker may get a job after it was reaped. Passes look at its lists while
    `superfetch:reaped` names it; if that key is deleted, `reap --full` has to find them. It saw
    landing lists only."""
    dead = bench.dead_owner()
    assert set(bench.reaper().reap().dead) == {dead.owner}
    if kind == "private":
        bench.give(dead.owner, "mail", [b"1"])
    else:
        bench.land(dead.owner, "mail", b"1")
    bench.client.delete(bench.keys.reaped)
    assert not bench.reaper().reap().did_something, "the control: no pass finds it"
    assert bench.reaper().register_unknown() == 1
    bench.reaper().reap()
    assert bench.queue() == [b"1"]
    assert bench.registry.owners() == {}


def test_a_key_of_another_type_is_not_a_job_of_a_reaped_owner(bench):
    dead = bench.dead_owner()
    bench.reaper().reap()
    bench.client.delete(bench.keys.reaped)
    bench.client.set(bench.keys.private(dead.owner), "a text")
    assert bench.reaper().register_unknown() == 0


def test_a_pass_does_not_look_for_strangers(bench):
    bench.give("web-9|4|x", "mail", [b"1"])
    assert not bench.reaper().reap().did_something
    assert bench.registry.owners() == {}


@pytest.mark.parametrize("prefix", ["", "shop:", "a*b[c]?"])
def test_only_lists_of_ones_own_prefix_are_found(make_bench, prefix):
    own, other = make_bench(global_keyprefix=prefix), make_bench(global_keyprefix="a__bc_")
    own.give("web-9|4|own", "mail", [b"1"])
    other.give("web-9|4|other", "mail", [b"2"])
    assert own.reaper().register_unknown() == 1
    assert set(own.registry.owners()) == {"web-9|4|own"}
    assert other.registry.owners() == {}


def test_more_lists_than_one_step_of_the_scan_are_found(bench):
    for n in range(50):
        bench.give(f"web-{n}|4|x", "mail", [b"1"])
    with bench.client.pipeline() as pipe:
        for n in range(5000):
            pipe.set(f"noise-{n}", 1)
        pipe.execute()
    assert bench.reaper().register_unknown() == 50


def test_a_key_of_another_type_is_not_in_the_way(bench):
    bench.client.set(bench.keys.private("web-1|4|x"), "a text")
    bench.client.set(bench.keys.landing("web-3|4|x", "mail"), "a text")
    bench.give("web-2|4|x", "mail", [b"1"])
    assert bench.reaper().register_unknown() == 1
    assert set(bench.registry.owners()) == {"web-2|4|x"}


def test_a_name_that_is_no_text_is_not_in_the_way(bench):
    bench.client.hset(b"superfetch:private:\xff|1|x", "1:mail", b"1")
    bench.client.lpush(b"superfetch:landing:\xfe|1|x:mail", b"1")
    bench.give("web-2|4|x", "mail", [b"1"])
    bench.reaper().register_unknown()
    assert "web-2|4|x" in bench.registry.owners()
    assert bench.reaper().reap().errors == 0, "nor in that of a pass that finds what was registered"
