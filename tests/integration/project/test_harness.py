"""The harness does what it says, shown with the stock transport: nothing under test is involved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import redis

from support.hosts import Host
from support.machines import Machine, pid_inside
from support.process import Process, is_alive
from support.waiting import always, eventually

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


def test_server_options(fresh_server, tmp_path):
    server = fresh_server(requirepass="p@ss/word", unixsocket=True, maxmemory="50mb")
    assert server.client().config_get("maxmemory")["maxmemory"] == str(50 * 1024 * 1024)
    assert server.options["unixsocket"] in server.unix_url(2)
    replica = fresh_server(replicaof=["127.0.0.1", str(server.port)], masterauth="p@ss/word")
    eventually(lambda: replica.client().info("replication")["master_link_status"] == "up")

    (tmp_path / "users.acl").write_text("user default off\nuser me on >pw ~* &* +@all\n")
    with_acl = fresh_server(aclfile=str(tmp_path / "users.acl"))
    with redis.Redis(port=with_acl.port, username="me", password="pw") as client:
        assert client.ping()


# -- workers -------------------------------------------------------------------------------------


def test_a_worker_works_and_stops_warmly(worker, shop, ledger):
    one = worker(superfetch=False)
    assert shop.add.delay(2, 3).get(timeout=20) == 5
    shop.note.delay("n")
    eventually(lambda: ledger.finishes().get("n"))
    one.term()
    assert one.wait_exit() == 0
    assert "Warm shutdown" in one.log()
    one.wait_gone()


def test_killing_the_main_process_leaves_nothing(worker, shop, ledger):
    one = worker(superfetch=False, concurrency=2)
    shop.hold.delay("h")
    eventually(lambda: ledger.starts().get("h"))
    assert len(one.children()) == 2
    one.kill9_main()
    assert one.wait_exit() == -signal.SIGKILL
    one.wait_gone()
    assert not ledger.finishes()


def test_killing_the_group_leaves_nothing(worker):
    one = worker(superfetch=False)
    pool = one.children()
    one.kill9_all()
    assert one.wait_exit() == -signal.SIGKILL
    one.wait_gone(5)
    assert not any(is_alive(child) for child in pool)


def test_a_killed_child_is_replaced(worker):
    one = worker(superfetch=False)
    killed = one.kill9_child()
    eventually(
        lambda: len(one.children()) == 2 and killed not in {child.pid for child in one.children()}
    )
    assert one.alive()


@pytest.mark.parametrize("pool", ["solo", "threads", "gevent"])
def test_other_pools(worker, shop, ledger, pool):
    one = worker(superfetch=False, pool=pool, concurrency=1 if pool == "solo" else 2)
    shop.note.delay("n")
    eventually(lambda: ledger.finishes().get("n"))
    shop.kill_owner.delay("k")
    assert one.wait_exit() == -signal.SIGKILL
    assert list(ledger.starts()) == ["n", "k"]


def test_the_owner_can_be_killed_by_its_job(worker, shop, ledger):
    one = worker(superfetch=False)
    shop.kill_owner.delay("k")
    assert one.wait_exit() == -signal.SIGKILL
    one.wait_gone()


def test_a_frozen_worker_does_nothing_until_thawed(worker, shop, ledger):
    one = worker(superfetch=False)
    with one.frozen():
        shop.note.delay("later")
        always(lambda: not ledger.starts(), during=0.5, message="a frozen worker runs nothing")
        assert one.alive()
    eventually(lambda: ledger.finishes().get("later"))


def test_held_jobs_wait_for_their_release(worker, shop, ledger):
    worker(superfetch=False)
    shop.hold.delay("h")
    eventually(lambda: ledger.starts().get("h"))
    always(lambda: not ledger.finishes(), during=0.3)
    ledger.release("h")
    eventually(lambda: ledger.finishes().get("h"))


def test_beat_sends_what_is_due(worker, beat, ledger):
    tick = {"task": "shop.note", "schedule": 0.5, "args": ["tick"]}
    conf = {"beat_schedule": {"tick": tick}, "beat_max_loop_interval": 0.2}
    worker(superfetch=False)
    beat(superfetch=False, conf=conf)
    eventually(lambda: len(ledger.finishes().get("tick", [])) >= 2)


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
    second.term()
    assert second.wait_exit() == 0


@pytest.mark.netns
def test_a_host_runs_one_command(worker):
    host = Host("once")
    worker(superfetch=False, host=host, pool="solo").kill9_all()
    with pytest.raises(RuntimeError, match="new Host"):
        host.attach(subprocess.Popen(["true"]))


@pytest.mark.netns
def test_commands_come_and_go_on_a_machine(tmp_path):
    program = "import os, socket, time; print(os.getpid(), socket.gethostname()); time.sleep(60)"
    argv = [sys.executable, "-u", "-c", program]

    def start(name):
        place = {"log": tmp_path / name, "env": os.environ, "cwd": tmp_path}
        return Process(argv, host=machine.seat(), **place)

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
        made.append(Process(argv, log=tmp_path / "log", env=os.environ, cwd=tmp_path))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with made[0] as process:
        always(process.alive, during=0.5)
    assert not process.alive()


@ON_LINUX
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


@pytest.mark.parametrize(
    ("number", "url", "said"),
    [
        ("auto", "", "1 worker [1 item]"),
        ("auto", "redis://127.0.0.1:1/0", "they run one at a time\n"),
        ("2", "redis://127.0.0.1:1/0", "leave out -n, or say -n auto"),
    ],
)
def test_processes_share_no_server(number, url, said):
    pytest.importorskip("xdist")
    argv = [sys.executable, "-m", "pytest", "-n", number, "-p", "no:cacheprovider"]
    test = f"{Path(__file__).parents[2]}/unit/project/test_rooms.py::test_no_circle"
    env = {**os.environ, "SUPERFETCH_TEST_URL": url, "PYTEST_XDIST_AUTO_NUM_WORKERS": "1"}
    done = subprocess.run([*argv, test], env=env, capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr
    assert ("1 worker [" in done.stdout) == (not url)
    assert done.returncode == (0 if number == "auto" else pytest.ExitCode.USAGE_ERROR)
