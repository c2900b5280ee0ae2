"""`celery superfetch drill`: a worker of one's own is killed, and it is seen when its jobs run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial
from subprocess import PIPE

import click
import pytest

from support.hosts import Host
from support.workers.bench import Bench
from support.workers.cli import superfetch_command
from support.workers.worker import SCRIPT, Worker, app_env, process_env

QUICK = {"heartbeat_interval": 1, "owner_ttl": 5, "reap_interval": 1}
LONG = ("--seconds", "8", "--jobs", "3", "--wait", "60")
SHORT = ("--seconds", "20", "--jobs", "3")


@pytest.fixture
def worker(worker: Callable[..., Worker]) -> Callable[..., Worker]:
    """Workers by the installed command: the drill kills only what is called `celery ... worker`."""
    return partial(worker, program=[SCRIPT])


def test_the_jobs_of_the_killed_worker_run_again_on_another(cli, worker):
    workers = worker(concurrency=3), worker(concurrency=3)
    done = cli("drill", "--queue", "celery", *SHORT, "--yes", "--json")
    document = done.json()
    assert document["complete"]
    assert document["stock"] == 3600
    assert document["jobs"]
    assert all(run["after"] >= 0 for run in document["jobs"])
    assert "no other worker" not in done.err
    assert "ran again on" in done.err
    assert all(run["recovered"] <= run["after"] for run in document["jobs"])
    assert f"Killed {document['jobs'][0]['node']} (pid" in done.err, "also with --yes"
    [victim] = [w for w in workers if w.name == document["jobs"][0]["node"].partition("@")[0]]
    [other] = [w for w in workers if w is not victim]
    victim.wait_gone()
    assert {run["again"].partition("@")[0] for run in document["jobs"]} == {other.name}


def test_a_lone_worker_is_told_of_and_its_jobs_wait_for_its_successor(cli, worker):
    victim = worker(pool="threads", concurrency=1)  # else one of two may be yet to begin
    done = cli("drill", "--queue", "celery", *SHORT, "--yes", "--wait", "8", code=1)
    victim.wait_gone()
    assert "no other worker consumes queue 'celery'" in done.err
    assert "0 of 1 job recovered; 0 ran again. The others have not started again" in done.out
    assert "Stock Celery would have lost them" in done.out


def test_jobs_of_others_are_spared_unless_it_is_told(cli, worker, shop, ledger):
    victim = worker(concurrency=2)
    shop.run("of mine")
    drill = ("drill", "--queue", "celery", *SHORT)
    done = cli(*drill, "--yes", code=1)
    assert "also runs 1 other job (shop.hold[" in done.err
    assert "--others-too" in done.err
    assert victim.alive()
    worker(concurrency=2)
    refused = cli(*drill, "--others-too", answer="n\n", code=1)
    assert "with all its processes?" in refused.err
    assert victim.alive()


def test_jobs_that_start_before_the_operator_answers_are_spared(cli, worker, shop, monkeypatch):
    victim = worker(concurrency=4)

    def confirm(*_: object, **__: object) -> bool:
        shop.run("of mine")
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    done = cli("drill", "--queue", "celery", *SHORT, code=1)
    assert "also runs 1 other job (shop.hold[" in done.err
    assert victim.alive()


@pytest.mark.netns
def test_jobs_that_end_in_a_worker_that_is_not_killed_are_not_recovered(cli, worker):
    """It kills none of another host, and said that jobs that had ended were recovered."""
    far = worker(host=Host("far"), concurrency=2)
    words = ("--seconds", "5", "--jobs", "2", "--yes", "--wait", "30")
    done = cli("drill", "--queue", "celery", *words, code=1)
    assert "on another host. Kill it: it is the first process of its container" in done.err
    assert "kill -9" not in done.err, "the kernel takes no SIGKILL for pid 1 from inside"
    assert far.alive()
    assert done.out.replace("\n", " ").startswith("0 of ")
    assert f"ended in {far.name}@far, which was not killed in time" in done.out.replace("\n", " ")


@pytest.mark.netns
def test_jobs_of_a_worker_that_is_killed_on_another_host_run_again_on_a_third(url, worker):
    hosts = {name: worker(host=Host(name), concurrency=2, options=QUICK) for name in ("one", "two")}
    env = process_env(app_env(url, ledger_url="", options=QUICK))
    line = superfetch_command("drill", "--queue", "celery", *LONG, "--yes", "--json")
    drill = subprocess.Popen(line, env=env, stdout=PIPE, stderr=PIPE, text=True)
    try:
        said = ""
        while "on another host" not in said:
            said = drill.stderr.readline()
            assert said, "the drill ended"
        [victim] = [name for name in hosts if f"@{name} " in said]
        [other] = {*hosts} - {victim}
        hosts[victim].kill9_all()
        document = json.loads(drill.communicate(timeout=90)[0])
    finally:
        drill.kill()
    assert document["complete"]
    assert {run["node"].partition("@")[2] for run in document["jobs"]} == {victim}
    assert all(run["recovered"] is not None and not run["ended"] for run in document["jobs"])
    assert {run["again"].partition("@")[2] for run in document["jobs"]} == {other}


def test_a_queue_without_a_worker_is_refused_before_anything_is_sent(cli, bench):
    done = cli("drill", "--queue", "nobodys", "--yes", code=1)
    assert "no worker consumes queue 'nobodys': no job was sent" in done.err
    assert bench.queue("nobodys") == []
    bench.owner(lists=["nobodys"])
    done = cli("drill", "--queue", "nobodys", "--yes", "--wait", "1", code=1)
    assert "no worker has started a job of the drill within 1 s" in done.err


def test_what_waits_for_a_slot_of_the_drill_s_own_jobs_is_recovered_at_once(cli, worker):
    for _ in range(2):
        worker(concurrency=2)
    # More than one worker reserves: the survivor has its share, whichever of the two came first.
    words = ("--seconds", "60", "--jobs", "16", "--wait", "15", "--yes", "--json")
    document = cli("drill", "--queue", "celery", *words).json()
    assert document["complete"]
    assert [run["after"] for run in document["jobs"]] == [None, None], "all slots are taken"
    assert all(run["recovered"] is not None for run in document["jobs"])


def test_jobs_that_the_server_does_not_take_are_said_without_a_traceback(cli, fresh_server):
    server = fresh_server()
    Bench(server.client()).owner(lists=["celery"])
    server.client().config_set("maxmemory", 1)
    done = cli("drill", "--queue", "celery", "--yes", code=1, url=server.url(), process=True)
    assert "refused a command: " in done.err
    assert "used memory > 'maxmemory'" in done.err
