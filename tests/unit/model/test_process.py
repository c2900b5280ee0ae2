"""Who a process is, and what its host can tell of a pid: real processes, no made-up ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from celery_superfetch.model import process
from celery_superfetch.model.process import ProcessImage, host_name, look_at, mint_owner, start_time
from celery_superfetch.model.verdict import Reason
from support.waiting import eventually

SLEEPER = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its stdin to close."""
    process = subprocess.Popen(SLEEPER, stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_ones_own_process_is_running():
    assert look_at(os.getpid(), start_time(os.getpid()) or "") is Reason.RUNNING


def test_a_child_is_running_until_it_is_killed_and_a_zombie_until_it_is_waited_for(child):
    started = start_time(child.pid)
    assert started
    assert look_at(child.pid, started) is Reason.RUNNING
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: look_at(child.pid, started) is Reason.PROCESS_ZOMBIE, 10)
    child.wait()
    assert look_at(child.pid, started) is Reason.PROCESS_GONE
    assert start_time(child.pid) is None


def test_a_frozen_process_is_running(child):
    started = start_time(child.pid) or ""
    os.kill(child.pid, signal.SIGSTOP)
    assert look_at(child.pid, started) is Reason.RUNNING


def test_a_process_with_another_start_time_is_somebody_else():
    assert look_at(os.getpid(), "1") is Reason.PID_REUSED


def test_an_owner_that_never_learned_its_start_time_is_judged_by_its_pid_alone():
    assert look_at(os.getpid(), "") is Reason.RUNNING


def test_a_zombie_is_one_whatever_its_start_time_seems_to_be(child):
    child.kill()
    eventually(lambda: look_at(child.pid, "") is Reason.PROCESS_ZOMBIE, 10)
    assert look_at(child.pid, "1") is Reason.PROCESS_ZOMBIE


def test_somebody_elses_process_is_a_process():
    """EPERM: asked by a user who may not signal pid 1, and sees that it is there."""
    started = start_time(1)
    if started is None:
        pytest.skip("pid 1 cannot be seen here")
    asked = f"""
import os, sys
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    os.kill(1, 0)
except PermissionError:
    pass
else:
    sys.exit(77)
from celery_superfetch.model.process import look_at
print(look_at(1, {started!r}).name, look_at(1, "x").name)
"""
    # Imported as the user we are: another may not be able to read the package.
    code = "import celery_superfetch.model.process\n" + asked
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("every user here may signal pid 1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["RUNNING", "PID_REUSED"]


def test_start_times_of_one_process_agree_and_those_of_two_differ(child):
    assert start_time(os.getpid()) == start_time(os.getpid())
    assert start_time(os.getpid()) != start_time(child.pid)


def test_the_start_time_is_the_raw_one_of_the_kernel():
    """psutil's would move whenever the clock is set."""
    if sys.platform != "linux":
        pytest.skip("/proc is Linux")
    assert (start_time(os.getpid()) or "").isdigit()


def test_where_there_is_no_proc_it_is_what_psutil_tells_processes_apart_by(monkeypatch):
    """A4. On macOS its ``create_time`` moves when the clock is set."""

    def no_proc(name: str) -> None:
        raise FileNotFoundError(name)

    monkeypatch.setattr(process, "open", no_proc, raising=False)
    assert start_time(os.getpid()) == str(hash(psutil.Process()))
    assert start_time(os.getpid()) != start_time(os.getppid())


def test_linux_without_proc_knows_itself_and_judges_nobody_by_pid():
    """A11. It ended with a FileNotFoundError."""
    code = (
        "from celery_superfetch.model.process import ProcessImage, _current, look_at, own_pid;"
        "one, other = ProcessImage.current(), _current.__wrapped__(own_pid());"
        "print(one.is_local_to(one), one.is_local_to(other), look_at(own_pid(), '1').name)"
    )
    bare = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    try:
        subprocess.run([*bare, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"needs a mount namespace: {exc}")
    done = subprocess.run([*bare, sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False", "RUNNING"], done.stderr


def test_every_owner_is_a_new_one():
    image = ProcessImage.current()
    owners = {mint_owner(image) for _ in range(100)}
    assert len(owners) == 100
    for owner in owners:
        host, pid, nonce = owner.split("|")
        assert (host, pid) == (host_name(), str(os.getpid()))
        assert nonce
        assert ":" not in owner, "the private lists' keys are split at the first colon"


def test_a_forked_child_is_somebody_else():
    mine = ProcessImage.current()
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        image = ProcessImage.current()
        os.write(writer, f"{image.pid} {image.start_time} {image.image} {image.host}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        child_pid, started, image_id, host = pipe.read().split()
    os.waitpid(pid, 0)
    assert int(child_pid) == pid != mine.pid
    assert host == mine.host
    assert started, "it looked itself up"
    assert image_id != mine.image
    assert ProcessImage.current() is mine, "and left its parent as it was"


def test_a_program_executed_in_the_same_process_is_a_newer_image():
    """HUP: Celery executes itself again under its pid, with the same start time."""
    report = (
        "from celery_superfetch.model.process import ProcessImage as P; i = P.current();"
        "print(i.pid, i.start_time, i.image, flush=True)"
    )
    again = (
        f"{report}; import os, sys; os.execv(sys.executable, [sys.executable, '-c', {report!r}])"
    )
    done = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, check=True)
    first, second = (line.split() for line in done.stdout.splitlines())
    assert first[:2] == second[:2]
    assert first[2] != second[2]


def test_a_pid_means_something_on_the_same_ground_only():
    mine = ProcessImage.current()
    assert mine.is_local_to(replace(mine, pid=1, start_time="1", image="other"))
    for part in ("host", "boot_id", "pid_namespace"):
        assert not mine.is_local_to(replace(mine, **{part: "another"})), part
    assert mine.same_process(replace(mine, image="other"))
    assert not mine.same_process(replace(mine, start_time="1"))
    assert not mine.same_process(replace(mine, pid_namespace="another"))
