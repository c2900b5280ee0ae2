"""What would let other tests pass for nothing: a death that is none, a freeze that thaws by itself,
a host that is this one. Shown with the stock transport: nothing under test is involved."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import redis

from support.hosts import Host
from support.machines import Machine, pid_inside
from support.process import Process, is_alive, leftovers
from support.servers.server import Server
from support.waiting import always, eventually
from support.workers.worker import TESTS, Worker

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="PDEATHSIG is Linux")


# -- the server ----------------------------------------------------------------------------------


def test_a_killed_server_comes_back_on_its_port_with_its_data(fresh_server):
    server = fresh_server(appendonly=True, appendfsync="always")
    client, port = server.client(), server.port
    client.set("kept", "yes")
    server.kill()
    assert not server.alive()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    server.restart()
    assert server.port == port
    assert client.get("kept") == b"yes"


def test_a_paused_server_is_connected_but_silent(fresh_server):
    server = fresh_server()
    client = server.client(socket_timeout=0.3)
    client.ping()
    server.pause()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    server.resume()
    eventually(client.ping)


# -- workers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [Worker.kill9_main, Worker.kill9_all])
def test_killing_the_main_process_or_the_group_leaves_nothing(worker, shop, ledger, kill):
    one = worker(superfetch=False, concurrency=2)
    shop.run("h")
    pool = one.children()
    assert len(pool) == 2
    kill(one)
    assert one.wait_exit() == -signal.SIGKILL
    one.wait_gone(5)
    assert not any(is_alive(child) for child in pool)
    assert not ledger.finishes()


def test_a_frozen_worker_does_nothing_until_thawed(worker, shop, ledger):
    one = worker(superfetch=False)
    shop.run("held")
    with one.frozen():
        ledger.release("held")
        shop.note.delay("later")
        always(lambda: len(ledger.lines()) == 1, during=0.5, message="a frozen worker runs nothing")
        assert one.alive()
    eventually(lambda: set(ledger.finishes()) == {"held", "later"})


# -- hosts ---------------------------------------------------------------------------------------


@pytest.mark.netns
def test_two_hosts_of_one_name_both_have_pid_1(worker, shop, ledger):
    first = worker(superfetch=False, host=Host("twin"), concurrency=1, name="same")
    second = worker(superfetch=False, host=Host("twin"), concurrency=1, name="same")
    assert "same@twin" in first.log()
    assert "same@twin" in second.log()
    for _ in range(4):
        shop.hold.delay("h", 1)
    eventually(lambda: len(ledger.finishes().get("h", [])) == 4)
    assert {line["host"] for line in ledger.lines()} == {"twin"}
    for one in (first, second):
        status = Path(f"/proc/{one.pid}/status").read_text()
        assert next(line for line in status.splitlines() if line.startswith("NSpid")).endswith(
            "\t1"
        )
    pool = first.children()
    first.host.kill()
    assert not any(is_alive(child) for child in pool)
    first.wait_gone(5)
    second.stop()


@pytest.mark.netns
@ON_LINUX
def test_a_killed_process_counts_as_alive_until_its_last_thread_has_ended(tmp_path):
    """Its sockets are open until then. On a busy machine one in four was a zombie before."""
    lines = (
        "import threading, time\nfor _ in range(8): threading.Thread(target=time.sleep, args=(60,))"
    )
    for number in range(30):
        argv = [sys.executable, "-c", f"{lines}.start()\ntime.sleep(60)"]
        process = Process(argv, log=tmp_path / f"log-{number}")
        tasks = Path(f"/proc/{process.pid}/task")
        eventually(lambda tasks=tasks: len(list(tasks.iterdir())) == 9)
        found = psutil.Process(process.pid)
        found.kill()
        while is_alive(found):
            pass
        assert not tasks.exists() or len(list(tasks.iterdir())) == 1
        process.close()


def test_a_host_runs_one_command(tmp_path):
    host = Host("once")
    with (
        Process(["sleep", "60"], host=host, log=tmp_path / "log"),
        pytest.raises(RuntimeError, match="new Host"),
    ):
        host.attach(subprocess.Popen(["true"]))


@pytest.mark.netns
def test_commands_come_and_go_on_a_machine(tmp_path):
    program = "import os, socket, time; print(os.getpid(), socket.gethostname()); time.sleep(60)"
    argv = [sys.executable, "-u", "-c", program]

    def start(name):
        return Process(argv, host=machine.seat(), log=tmp_path / name)

    with Machine("box", tmp_path) as machine, start("one") as one, start("two") as two:
        for process in (one, two):
            eventually(lambda process=process: process.log().endswith("\n"))
            inside = pid_inside(psutil.Process(process.pid))
            assert process.log().split() == [str(inside), "box"]
        one.host.kill()
        one.wait_gone()
        assert two.alive()
    assert not two.survivors()


# -- nothing outlives the tests ------------------------------------------------------------------


def test_a_process_outlives_the_thread_that_started_it(tmp_path):
    made: list[Process] = []

    def start() -> None:
        argv = [sys.executable, "-c", "import time; time.sleep(60)"]
        made.append(Process(argv, log=tmp_path / "log"))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with made[0] as process:
        always(process.alive, during=0.5)
    assert not process.alive()


@ON_LINUX
def test_what_has_left_its_group_unseen_is_a_leftover(tmp_path):
    """The control of what each test with whole workers ends with."""
    leaves = "import os, time; os.fork() or os.setsid() or os.fork() or time.sleep(60)"
    with Process([sys.executable, "-c", leaves], log=tmp_path / "log") as it:
        it.wait_exit()
        assert not leftovers(), "it may still be seen"
    eventually(lambda: len(leftovers()) == 1)  # who has started it may take a moment to end
    [left] = leftovers()
    left.kill()
    eventually(lambda: not leftovers())


def test_a_killed_pytest_takes_its_processes_along(fresh_server, tmp_path):
    fresh_server()  # skips where there is no server to run
    script = tmp_path / "fake_pytest.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "from support.servers.server import Server\n"
        "server = Server().start()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    # It cannot clean up after itself, so its scratch goes where pytest does.
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    argv = [sys.executable, str(script)]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, **paths}
    ) as fake:
        assert fake.stdout is not None
        server = psutil.Process(int(fake.stdout.readline()))
        assert is_alive(server)
        fake.kill()
    eventually(lambda: not is_alive(server), within=5)


# -- several processes of pytest -----------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "redis://127.0.0.1:1/0"], ids=["a server each", "by URL"])
def test_processes_share_no_server(request, monkeypatch, url):
    """One that is named by URL is one for all, and the tests empty its databases."""
    conftest = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    monkeypatch.setattr(conftest, "EXTERNAL", url)
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    option = SimpleNamespace(dist="load", capture="fd")
    two = SimpleNamespace(option=option, args=["tests"], getoption=lambda *_: 2)
    assert (conftest.pytest_xdist_auto_num_workers(two) == 0) == bool(url)
    two.args = ["tests/test_this.py::test_that"]
    assert conftest.pytest_xdist_auto_num_workers(two) == 0, "who names one waits for no other"
    two.args = ["tests"]
    said = pytest.raises(pytest.UsageError, match="leave out -n, or say -n auto")
    with said if url else contextlib.nullcontext():
        conftest.pytest_configure(two)


def test_a_server_whose_port_has_another_is_not_taken_for_that(fresh_server):
    """The other answers while ours is about to find its port in use."""
    first, second = fresh_server(), Server()
    second.port = first.port
    with pytest.raises(RuntimeError, match="in use"):
        second.start()
    second.close()
