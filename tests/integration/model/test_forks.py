"""The gate that keeps forks and other threads apart."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.apps.gate import HOOKS
from support.workers.worker import process_env


def run(*words: str, within: float = 60, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "support.apps.gate", *words],
        env=process_env(env),
        capture_output=True,
        text=True,
        timeout=within,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("gate", [[], ["ungated"]], ids=["gated", "control"])
def test_a_child_may_log_although_a_thread_of_the_package_was_writing(gate):
    """What a log file buffers has a lock, which Python does not make anew in a child."""
    assert run("log_file", *gate).strip() == ("hung" if gate else "done")


def test_a_fork_does_not_wait_for_ever():
    """Foreign code may hang; the log names the thread, and the child's gate is new."""
    said = run("hanging")
    assert "Thread one-that-hangs has been in code of the app or of a library for 1 s" in said
    assert said.strip().endswith("done")


@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_fork_hook_of_others_meets_no_lock(hook, when, url):
    """Whether it was registered before this package was imported or after it."""
    assert run("hooks", hook, when, URL=url).strip() == "done"


def test_the_control_hangs_where_handlers_are_locked_over_a_fork(url):
    with pytest.raises(subprocess.TimeoutExpired):
        run("hooks", "joins a thread that logs", "early", "locked", URL=url, within=5)
