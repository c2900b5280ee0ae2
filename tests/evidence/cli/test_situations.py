"""Situations as a person on call meets them: what `status`, `check`, `superfetch-check`, the
metrics and the page say of each, and that they agree."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.testclient import TestClient

from celery_superfetch.console.findings_of_jobs import DEAD_LETTERED_MANY
from celery_superfetch.console.probe import main
from celery_superfetch.console.web import create_app
from celery_superfetch.model.job import Counters, Job, claim_number
from celery_superfetch.store.dead_caps import JUNK_LIMIT
from support.servers.server import Server
from support.waiting import eventually
from support.well import make_well
from support.workers.bench import Bench, elsewhere, ended_process, image_of, payload

#: Long enough that no owner of a bench becomes stale while a test runs.
CALM = {"heartbeat_interval": 3600.0, "owner_ttl": 7200.0}


@dataclass
class Situation:
    """A server, and what a test may do with it."""

    server: Server
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def bench(self) -> Bench:
        return Bench(self.server.client())

    def waiting(self, count: int = 5, queue: str = "mail") -> None:
        self.bench.push(queue, *(payload(n, queue=queue) for n in range(count)))

    def process(self) -> int:
        """Start a process of this host, which a worker may be; returns its pid."""
        program = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
        self.processes.append(subprocess.Popen(program, stdin=subprocess.PIPE))
        return self.processes[-1].pid

    def silent_for(self, owner: str, seconds: float) -> None:
        now = self.bench.database.server_time()
        self.bench.client.zadd(self.bench.keys.owners, {owner: now - int(seconds * 1000)})


def no_worker(on: Situation) -> None:
    pass


def all_well(on: Situation) -> None:
    make_well(on.bench)


def stopping(on: Situation) -> None:
    make_well(on.bench)
    on.bench.owner(node="celery@two", lists=["aside"], state="stopping", **CALM)
    on.waiting(queue="aside")


def stopping_for_long(on: Situation) -> None:
    """A worker got SIGTERM ten minutes ago and waits for a job that hangs."""
    make_well(on.bench)
    bench = on.bench
    since = bench.database.server_time() - 600_000
    record = bench.owner(node="celery@two", lists=["aside"], **CALM)
    stopping = record.with_(
        state="stopping", stopping_since=since, started_jobs=((1, since // 1000 - 60),)
    )
    bench.registry.register(stopping)


def lost_jobs(on: Situation) -> None:
    make_well(on.bench)
    on.bench.stats.record_lost_by_server([Job("", "mail", payload("gone"), "1:mail")])


def flushed(on: Situation) -> None:
    """Jobs that waited are gone, and a worker that runs found that the server forgot it."""
    on.waiting()
    on.server.client().flushall()
    make_well(on.bench)
    on.bench.stats.record_data_loss()


def restored(on: Situation) -> None:
    """The server came back with its last RDB save; jobs that it accepted later are gone."""
    make_well(on.bench)
    client = on.server.client()
    bench = on.bench
    for owner in bench.registry.owners():
        minutes_ago = bench.database.server_time() - 600_000
        bench.client.hset(bench.keys.owner_record(owner), "registered_at", minutes_ago)
    client.save()
    on.waiting(queue="mail")
    on.server.kill()
    on.server.configure(appendonly=False, save="3600 1")
    on.server.start()
    assert not on.bench.queue("mail")


def stale(on: Situation) -> None:
    make_well(on.bench)
    far = on.bench.owner(elsewhere(), node="celery@far", lists=["far"])
    on.silent_for(far.owner, 30)
    on.waiting(queue="far")


def hung(on: Situation) -> None:
    make_well(on.bench)
    on.bench.owner(elsewhere(), node="celery@far", lists=["far"], state="hung", **CALM)


def frozen(on: Situation) -> None:
    """A worker of this host whose process is stopped, as by SIGSTOP or a debugger."""
    make_well(on.bench)
    pid = on.process()
    image = image_of(pid)
    on.processes[-1].send_signal(signal.SIGSTOP)
    on.silent_for(on.bench.owner(image, node="celery@ice", lists=["ice"]).owner, 100)


def dead(on: Situation) -> None:
    on.bench.owner(ended_process(), node="celery@gone", lists=["mail"], **CALM)
    [owner] = on.bench.registry.owners()
    on.bench.give(owner, "mail", [payload("orphan")])


def forgotten(on: Situation) -> None:
    """The last worker of a queue left in order while the queue was empty; jobs came later."""
    make_well(on.bench)
    bench = on.bench
    assert bench.registry.leave(bench.owner(lists=["aside"], **CALM), 0) == 0
    on.waiting(3, queue="aside")


def unserved(on: Situation) -> None:
    """Jobs on a queue of the app that never had a worker."""
    make_well(on.bench)
    on.waiting(queue="celery")


def cancelled(on: Situation) -> None:
    make_well(on.bench)
    on.bench.owner(node="celery@two", lists=["aside"], unconsumed=("aside",), **CALM)
    on.waiting(queue="aside")


def nearly_full(on: Situation) -> None:
    make_well(on.bench)
    client = on.server.client()
    client.setrange("ballast", 50 * 1024**2, b"x")
    client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.03))


def full(on: Situation) -> None:
    """It refuses writes already; whoever only looks must not depend on one."""
    make_well(on.bench)
    on.server.client().config_set("maxmemory", 1024**2)


def evicting(on: Situation) -> None:
    make_well(on.bench)
    client = on.server.client()
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 1024**2)
    client.config_set("maxmemory-policy", "allkeys-random")
    for number in range(3000):
        client.set(f"results-{number}", "x" * 2000)
        if client.info("stats")["evicted_keys"]:
            break
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 0)
    make_well(on.bench)


def restarted(on: Situation) -> None:
    make_well(on.bench)
    # Registered before this server started, as after a restart with its data.
    bench = on.bench
    for owner in bench.registry.owners():
        hour_ago = bench.database.server_time() - 3_600_000
        bench.client.hset(bench.keys.owner_record(owner), "registered_at", hour_ago)


def unsaved(on: Situation) -> None:
    make_well(on.bench)
    on.server.client().config_set("appendonly", "no")
    on.server.client().config_set("save", "")


def pill(on: Situation) -> None:
    make_well(on.bench)
    on.bench.killed(payload("pill"))
    on.bench.client.delete(on.bench.keys.unannounced)


def flooded(on: Situation) -> None:
    make_well(on.bench)
    bench = on.bench
    jobs = bench.give("h|1|n", "mail", [b"junk %d" % n for n in range(JUNK_LIMIT)])
    recoveries = (bench.recovery(job, Counters()) for job in jobs)
    bench.scripts.run_all([bench.dead_set.kill_call(one, marked=False) for one in recoveries])


def pills(on: Situation) -> None:
    make_well(on.bench)
    on.bench.killed(*(payload(n) for n in range(DEAD_LETTERED_MANY)))
    on.bench.client.delete(on.bench.keys.unannounced)


def unannounced(on: Situation) -> None:
    make_well(on.bench)
    on.bench.killed(payload("pill"))


def long_running(on: Situation) -> None:
    make_well(on.bench)
    bench = on.bench
    owner = bench.owner(node="celery@two", lists=["mail"], **CALM)
    [job] = bench.give(owner, "mail", [payload("an-id", task="shop.scan")])
    bench.run_one(job)
    at = bench.database.server_time() // 1000 - 5 * 3600
    started = ((claim_number(job.claim_id), at),)
    bench.registry.register(owner.with_(started_jobs=started))


def scheduled(on: Situation) -> None:
    """A backlog of jobs that are due later is no fault."""
    make_well(on.bench)
    bench = on.bench
    due = bench.database.server_time() + 86_400_000
    bench.client.zadd(bench.keys.parked_of("mail"), {b"id 1:mail\n" + payload("later"): due})
    bench.client.zadd(bench.keys.parked, {"mail": due})


def on_probation(on: Situation) -> None:
    make_well(on.bench)
    bench = on.bench
    bench.client.lpush(bench.keys.probation("aside"), payload("suspect"))
    bench.client.sadd(bench.keys.on_probation, "aside")


def no_beat(on: Situation) -> None:
    make_well(on.bench)
    bench = on.bench
    then = bench.database.server_time() - 600_000
    bench.client.hset(bench.keys.beats, "shop", json.dumps([then, 10.0, "web-1", 7]))


def no_list(on: Situation) -> None:
    """Something else lives under a queue's name."""
    make_well(on.bench)
    on.server.client().set("mail", "no list")


#: Situation -> the worst level, and the codes of all findings.
SITUATIONS: dict[Callable[[Situation], None], tuple[str, set[str]]] = {
    all_well: ("", set()),
    no_worker: ("critical", {"no-worker"}),
    stopping: ("critical", {"no-consumer"}),
    stopping_for_long: ("warning", {"stopping-owner"}),
    lost_jobs: ("warning", {"lost-jobs"}),
    flushed: ("warning", {"data-lost"}),
    restored: ("warning", {"restarted"}),
    stale: ("critical", {"no-consumer", "silent-owner"}),
    hung: ("critical", {"hung-owner"}),
    frozen: ("critical", {"silent-owner"}),
    dead: ("critical", {"no-worker", "dead-owner"}),
    forgotten: ("critical", {"no-consumer"}),
    unserved: ("critical", {"no-consumer"}),
    cancelled: ("critical", {"no-consumer"}),
    nearly_full: ("critical", {"memory"}),
    full: ("critical", {"memory"}),
    evicting: ("critical", {"evicted"}),
    restarted: ("", {"restarted"}),
    unsaved: ("warning", {"no-persistence"}),
    pill: ("", {"job-killed"}),
    pills: ("warning", {"job-killed"}),
    flooded: ("warning", {"job-killed", "dead-set-flooded"}),
    unannounced: ("warning", {"job-killed", "unannounced"}),
    long_running: ("warning", {"long-running-job"}),
    scheduled: ("", set()),
    on_probation: ("critical", {"probation-unserved"}),
    no_beat: ("warning", {"beat-silent"}),
    no_list: ("critical", {"queue-type"}),
}
EXIT = {"": 0, "warning": 1, "critical": 2}


@pytest.fixture
def situation(fresh_server: Callable[..., Server]) -> Iterator[Situation]:
    made = Situation(fresh_server(appendonly=True))
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def codes(document: Any) -> set[str]:
    return {finding["code"] for finding in document["findings"]}


@pytest.mark.parametrize("arise", SITUATIONS, ids=lambda arise: arise.__name__)
def test_all_commands_say_of_a_situation_what_it_is(arise, situation, cli, make_app, capsys):
    level, expected = SITUATIONS[arise]
    arise(situation)
    url = situation.server.url()

    found = cli("status", "--json", url=url).json()
    assert codes(found) == expected
    checked = cli("check", "--json", url=url, code=EXIT[level]).json()
    assert codes(checked) == expected
    capsys.readouterr()
    # Without its app a probe does not know the app's queues.
    probed = main(["--broker", url, "--json"])
    if arise is not unserved:
        assert probed == EXIT[level]
        assert codes(json.loads(capsys.readouterr().out)) == expected
    # doctor examines this process and the app's settings besides.
    examined = cli("doctor", "--json", url=url, code=None).json()
    assert expected <= codes(examined)
    metrics = cli("metrics", "--once", url=url).out
    assert {*re.findall(r'superfetch_findings\{code="([^"]+)"', metrics)} == expected
    page = TestClient(create_app(make_app(url=url)), base_url="http://localhost").get("/").text
    [title] = re.findall("<title>(.*?) ·", page)
    verdict = cli("status", url=url).out.splitlines()[0].partition(":")[0]
    assert verdict == title == (level.capitalize() or "All is well")


def test_a_server_that_is_away_is_no_fleet_that_is_well(situation, cli, make_app):
    make_well(situation.bench)
    url = situation.server.url()
    page = TestClient(create_app(make_app(url=url)), base_url="http://localhost")
    assert "All is well" in page.get("/").text
    situation.server.stop()
    assert "nothing listens at that address" in cli("status", url=url, code=1).err
    assert "nothing listens at that address" in cli("check", url=url, code=2).out

    def away() -> bool:
        answer = page.get("/")
        return answer.status_code == 503 and "All is well" not in answer.text

    eventually(away, message="what was read a moment ago is shown no longer")
    assert "superfetch_up 0.0" in cli("metrics", "--once", url=url, code=1).out


def test_a_replica_says_that_it_is_one(situation, cli, fresh_server, make_app):
    make_well(situation.bench)
    replica = fresh_server(replicaof=["127.0.0.1", str(situation.server.port)])
    client = replica.client()
    eventually(lambda: client.info("replication")["master_link_status"] == "up")
    assert "read-only replica" in cli("check", url=replica.url(), code=2).out
    for words in ("status", "doctor"):
        refused = cli(words, url=replica.url(), code=1)
        assert "read-only replica" in refused.err
        assert not refused.out
    metrics = cli("metrics", "--once", url=replica.url(), code=1)
    assert "superfetch_up 0.0" in metrics.out
    assert "read-only replica" in metrics.err
    page = TestClient(create_app(make_app(url=replica.url())), base_url="http://localhost")
    answer = page.get("/")
    assert answer.status_code == 503
    assert "read-only replica" in answer.text
