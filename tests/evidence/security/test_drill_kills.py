"""The drill kills what this host and the server say is a worker, and nothing because a record names
it: whoever writes to the database can forge a record of any process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest

from celery_superfetch.console import drill
from celery_superfetch.model.process import ProcessImage
from celery_superfetch.model.worker_process import NotAWorker, has_socket, kill_tree, worker_at
from celery_superfetch.store.redis.clients import run_id
from support.process import Process
from support.waiting import eventually
from support.workers.bench import Bench, image_of
from support.workers.cli import superfetch_command
from support.workers.worker import process_env

#: It starts a child, says so, connects to nothing and waits for the end of the test.
WAITS = (
    "import os, subprocess, sys; "
    "child = subprocess.Popen([sys.executable, '-S', '-c', 'import sys; sys.stdin.read()'],"
    " stdin=subprocess.PIPE); os.setuid(int(sys.argv[1])); print(child.pid, flush=True);"
    " sys.stdin.read()"
)


class Innocent:
    """A process of this host, with a child."""

    def __init__(self, *words: str, user: int = os.getuid()) -> None:
        command = [sys.executable, "-S", "-c", WAITS, str(user), *words]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.popen.stdout is not None
        self.child = psutil.Process(int(self.popen.stdout.readline()))
        self.image = image_of(self.popen.pid)

    def lives(self) -> bool:
        return self.popen.poll() is None and self.child.is_running()

    def close(self) -> None:
        self.popen.communicate()
        self.child.wait(10)


@pytest.fixture
def innocent() -> Iterator[Callable[..., Innocent]]:
    made: list[Innocent] = []

    def start(*words: str, **user: int) -> Innocent:
        made.append(Innocent(*words, **user))
        return made[-1]

    yield start
    for each in made:
        each.close()


AS_A_WORKER = ("celery", "-A", "shop", "worker")


def drilled(bench: Bench, env: dict[str, str], tmp_path, image: ProcessImage, **record) -> Process:
    """Run a drill while somebody has forged a record of ``image``, and has put the drill's job into
    its private list."""
    words = ("drill", "--queue", "celery", "--jobs", "1", "--wait", "5", "--yes")
    owner = bench.owner(image, lists=["celery"], node="w1@here", **record)
    running = Process(superfetch_command(*words), log=tmp_path / "drill.log", env=process_env(env))
    [job] = eventually(lambda: bench.queue("celery"), message="the drill has sent its job")
    bench.run_one(*bench.give(owner, "celery", [job]))
    bench.client.delete("celery")
    return running


def test_a_forged_record_kills_no_process(bench, env, tmp_path, innocent):
    """It killed any process of its user, and all that this had started."""
    sleeper, disguised = innocent(), innocent(*AS_A_WORKER)
    with drilled(bench, env(), tmp_path, sleeper.image) as running:
        assert running.wait_exit() == 1
        assert (
            f"pid {sleeper.popen.pid} on this host is not a `celery ... worker` process"
            in running.log()
        )
        assert "No process was killed" in running.log()
    bench.client.flushdb()
    # A command line can be made up, and so can the ids: of connections that it does not have.
    ids, run = (bench.client.client_id(),), run_id(bench.client)
    image = disguised.image
    with drilled(bench, env(), tmp_path, image, connections=ids, run_id=run) as running:
        assert running.wait_exit() == 1
        assert "does not confirm that this process is that worker" in running.log()
        assert "Its command line: " in running.log()
        assert "worker" in running.log().partition("Its command line: ")[2], (
            "its command line is shown"
        )
    assert sleeper.lives()
    assert disguised.lives()


def test_the_control_a_record_that_is_believed_kills_it(bench, innocent, monkeypatch):
    victim = innocent()
    monkeypatch.setattr(drill, "worker_at", lambda image: psutil.Process(image.pid))
    monkeypatch.setattr(drill, "has_socket", lambda *_: True)
    trial = drill.Drill(None, None, "celery", 1, 5.0)
    trial.inspector = type("Inspector", (), {"registry": bench.registry})()
    trial.record = bench.owner(victim.image)
    process, is_confirmed = trial.target()
    assert is_confirmed
    kill_tree(process)
    victim.popen.wait(10)
    eventually(lambda: not victim.lives())


def test_what_the_host_contradicts_is_refused_with_its_reason(innocent):
    """pid 1, the drill itself, what started it, and a program that is no worker."""
    for pid, reason in (
        (1, "is the first process of this host"),
        (os.getpid(), "is this command, or a process that started it"),
        (os.getppid(), "is this command, or a process that started it"),
        (innocent().popen.pid, "is not a `celery ... worker` process: "),
    ):
        if pid == 1 and os.getppid() == 1:
            continue
        with pytest.raises(NotAWorker, match=reason):
            worker_at(image_of(pid))
    for pid in (0, -1, -os.getpid(), 2**22 + 1, 2**63, 10**30):
        with pytest.raises(ProcessLookupError):
            worker_at(replace(ProcessImage.current(), pid=pid))
    with pytest.raises(ProcessLookupError):
        worker_at(replace(innocent(*AS_A_WORKER).image, start_time="1"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts a process of another user")
def test_a_process_of_another_user_is_refused(innocent):
    """Also for root: the drill is called as the worker's user."""
    with pytest.raises(NotAWorker, match="run the drill as that user on this host"):
        worker_at(innocent(*AS_A_WORKER, user=65534).image)


def test_a_worker_that_runs_is_confirmed_by_its_socket(bench, worker, innocent):
    one = worker(program=("-m", "celery"), pool="solo")
    [name] = bench.registry.owners()
    record = bench.record(name)
    process = worker_at(record.process)
    addresses = bench.registry.addresses(record)
    assert process.pid == one.pid
    assert addresses
    assert has_socket(process, addresses)
    assert not has_socket(psutil.Process(innocent().popen.pid), addresses)
    stranger = record.with_(connections=(bench.client.client_id(),))
    assert not bench.registry.addresses(stranger), "an id of a client that is no worker"
