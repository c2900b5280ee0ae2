"""What is given back, where the server or the network does not play along."""

from __future__ import annotations

import pytest
import redis

from celery_superfetch.model.dead_job import DeadJob
from celery_superfetch.model.job import Job
from celery_superfetch.model.strikes import Decision, Limits, Recovery, decide
from celery_superfetch.signals import job_recovered, job_recovering
from support.servers.proxy import FaultProxy, Words
from support.waiting import eventually
from support.workers.bench import Bench, payload


def test_two_returns_that_meet_a_server_without_their_script_both_go_back(server):
    """The first was refused, somebody else told the server, the second was served, and the first
    was sent again behind it: it came late, and a hundred jobs were nobody's."""
    direct, raws = Bench(server.client()), [payload(n) for n in range(150)]
    sha = direct.scripts.command(direct.lists.requeue([Job("", "", b"")], "", 0))[1]
    returns: list[Words] = []

    def tell_between(words: Words) -> bool:
        if words[:2] == [b"EVALSHA", sha.encode()]:
            returns.append(words)
            if len(returns) == 2:
                eventually(lambda: direct.client.info("errorstats").get("errorstat_NOSCRIPT"))
                direct.client.script_load(direct.scripts._source("requeue"))
        return False

    with FaultProxy(server.port) as proxy:
        bench = Bench(redis.Redis(port=proxy.port))
        owner, held = bench.owner(), bench.driver
        jobs = [claimed.job for claimed in bench.take(owner, *raws, most=150)]
        direct.client.script_flush()
        direct.client.config_resetstat()
        proxy.cut_at(tell_between, reply_lost=False)
        held.requeue(reversed(jobs))
        assert direct.queue() == raws
        assert direct.private(owner) == []
        assert len(held) == 0


def test_a_recovery_whose_reply_was_lost_is_counted_and_told_once(server):
    """The same process has claimed the job again by then, and runs it: it was taken from there,
    and counted anew; here its second strike would have been its last."""
    direct, sender, limits = Bench(server.client()), object(), Limits(lambda _: 2, 20)
    told: list[Recovery] = []

    def note(recovery: Recovery, **_: object) -> None:
        told.append(recovery)

    def decided(recovery: Recovery, **_: object) -> Decision:
        return decide(recovery)

    job_recovered.connect(note, sender=sender)
    job_recovering.connect(decided, sender=sender)
    sha = direct.client.script_load(direct.scripts._source("recover"))
    with FaultProxy(server.port) as proxy:
        bench = Bench(redis.Redis(port=proxy.port))
        owner = bench.owner()

        def recover(job: Job) -> DeadJob | None:
            return bench.driver.recover_or_kill(job, "pool child lost", sender, limits)

        [claimed] = bench.take(owner, payload(1))
        proxy.cut_at(lambda words: words[:2] == [b"EVALSHA", sha.encode()], reply_lost=True)
        with pytest.raises(redis.ConnectionError):
            recover(claimed.job)
        eventually(lambda: direct.queue() == [payload(1)])
        [again] = bench.take(owner)
        assert recover(claimed.job) is None
        assert direct.private(owner) == [payload(1)], "it runs"
        counters = direct.counters(payload(1))
        assert (counters.recoveries, counters.strikes) == (1, 1)
        assert [*bench.driver] == [again.job]
        assert [(recovery.strikes, recovery.recoveries) for recovery in told] == [(1, 1)]
        dead = recover(again.job)
        assert dead is not None, "the control: this run is another"
        assert dead.strikes == 2
