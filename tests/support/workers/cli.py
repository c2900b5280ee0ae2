"""`celery superfetch ...` as an operator runs it, or in this process."""

from __future__ import annotations

import io
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from celery import Celery
from celery.bin.base import CLIContext

from celery_superfetch.cli import superfetch
from support.process import Process
from support.waiting import eventually
from support.workers.worker import CELERY, app_module, process_env


@dataclass
class Result:
    """What one command printed, and how it ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """stdout is one document and nothing else."""
        return json.loads(self.out)


def superfetch_command(*args: str, app: str | None = "shop") -> list[str]:
    """The command line of one command."""
    chosen = ["-A", app_module(app)] if app else []
    return [sys.executable, *CELERY, *chosen, "superfetch", *args]


def kill_in_the_middle(
    *args: str,
    env: Mapping[str, str],
    directory: Path,
    prepare: Callable[[], object],
    begun: Callable[[], object],
    ended: Callable[[], object],
) -> None:
    """SIGKILL a command that has begun and not ended; prepared anew when it was too quick."""
    for attempt in range(5):
        prepare()
        log = directory / f"killed-{attempt}.log"
        command = superfetch_command(*args)
        with Process(command, log=log, env=process_env(env)) as running:
            eventually(begun, every=0.001)
            running.signal(signal.SIGKILL)
            running.wait_exit()
        if not ended():
            return
    raise AssertionError("it was always too quick")


def run_superfetch(
    *args: str,
    env: Mapping[str, str],
    directory: Path,
    code: int = 0,
    app: str | None = "shop",
    answer: str = "",
) -> Result:
    """Run a command to its end and check its exit code."""
    done = subprocess.run(
        superfetch_command(*args, app=app),
        env=process_env(env),
        cwd=directory,
        input=answer,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return Result(done.returncode, done.stdout, done.stderr)


def superfetch_here(app: Celery, *args: str, code: int | None = 0, answer: str = "") -> Result:
    """What `run_superfetch` does, in this process."""
    out, err, root = io.StringIO(), io.StringIO(), logging.getLogger()
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        mock.patch("sys.stdin", io.StringIO(answer)),
        mock.patch.object(root, "handlers", []),  # no logging is set up: it goes to stderr
        pytest.raises(SystemExit) as ended,
    ):
        superfetch.main([*args], "celery superfetch", obj=CLIContext(app, True, None))
    said = f"{out.getvalue()}\n{err.getvalue()}"
    assert code is None or ended.value.code == code, said
    return Result(int(ended.value.code or 0), out.getvalue(), err.getvalue())
