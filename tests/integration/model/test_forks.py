"""The gate that keeps forks and other threads apart."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.workers.worker import process_env


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "support.apps.gate", *words],
        env=process_env({}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("gate", [[], ["ungated"]], ids=["gated", "control"])
def test_a_child_may_log_whoever_was_writing(gate):
    """A6: what a log file buffers has a lock, which Python does not make anew in a child."""
    assert run("log_file", *gate).strip() == ("hung" if gate else "done")


def test_a_fork_does_not_wait_for_ever():
    """A6: what is foreign may hang; the log names the thread, and the child's gate is new."""
    said = run("hanging")
    assert "Thread one-that-hangs has been in foreign code for 1 s" in said
    assert said.strip().endswith("done")
