"""Run tests in forks of a process that has imported and collected them before. Import and
collection are nine tenths of the cost of a few tests.

`mutation.py` starts `python -m evidence.warm COUNT` in the checkout of the tests (class `Warm`).
The process reads requests as lines of JSON: tests, files, and a limit in seconds. It answers each
with pytest's exit code, the test that fails first (or an empty text), and the lines of the files
that each test runs. It ends when its input ends, and so when the process that started it dies.

A process that has imported a module does not see a later change of it. So COUNT says how many of
the first requests are only collected: lists of tests whose code does not change. With 0 it imports
other packages only (Celery, redis, ...), and no code that is tested.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from evidence.reach import Reach, Reached

OPTIONS = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--timeout=60"]
OTHERS = "celery.app.trace celery.worker kombu.transport.redis redis psutil hypothesis gevent"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)
LIMIT = 300.0  # seconds after which tests that have not ended count as failed
NO_END = "(no end)"  # stands for the test that fails first


class Warm:
    """A process that runs tests in forks, as a context manager.

    Arguments:
        checkout: its working directory, whose tests it runs.
        collected: lists of tests that it imports and collects once, at its start.
    """

    def __init__(self, checkout: Path, collected: list[list[str]]) -> None:
        self._process: Any = subprocess.Popen(
            ["nice", sys.executable, "-m", "evidence.warm", str(len(collected))],
            cwd=checkout,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for tests in collected:
            self.run(tests)
        self._sound: list[list[str]] = []

    def check(self, tests: list[str]) -> None:
        """Run tests before anything is changed. Raise RuntimeError if one fails. A list that has
        passed is not run again."""
        if tests not in self._sound:
            if failed := self.run(tests):
                raise RuntimeError(f"{failed} fails without any change, so it cannot find one")
            self._sound.append(tests)

    def run(self, tests: list[str], limit: float = LIMIT) -> str:
        """Return the test that fails first, or an empty text if all pass. Tests that take more than
        ``limit`` seconds count as failed. Raise RuntimeError if the tests cannot be run."""
        failed, _ = self._ask(tests, [], limit)
        return failed

    def reach(self, tests: list[str], files: list[str]) -> list[Reached]:
        """Return the lines of some files that each test runs. A test that fails is printed and left
        out, since nothing was changed yet. Raise RuntimeError if no test passes."""
        failed, reached = self._ask(tests, files, 10 * LIMIT)
        if failed:
            print(f"left out, since it fails without any change: {failed}", flush=True)
        if not reached:
            raise RuntimeError(f"no test of {' '.join(tests)} passes")
        return reached

    def _ask(self, tests: list[str], files: list[str], limit: float) -> tuple[str, list[Reached]]:
        """Send a request to the process, and return its answer. Raise RuntimeError if pytest could
        not run the tests."""
        print(json.dumps([tests, files, limit]), file=self._process.stdin, flush=True)
        code, failed, reached = json.loads(self._process.stdout.readline())
        if code not in (0, 1, 2):
            raise RuntimeError(f"pytest {' '.join(tests)} exits with {code}")
        return (failed or tests[0]) if code else "", [Reached(*row) for row in reached]

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()


def _forked(tests: list[str], files: list[str], limit: float) -> tuple[int, str, list[Reached]]:
    """Run tests in a fork. Return pytest's exit code, the test that failed first (empty if pytest's
    output names none), and the lines of some files that each test runs."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as rows:
        if (pid := os.fork()) == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            reach = Reach(files)
            plugins, more = ([reach], ["--maxfail=100"]) if files else ([], [])
            code = pytest.main([*OPTIONS, *more, *tests], plugins=plugins)
            json.dump(reach.reached, rows)
            rows.flush()
            os._exit(code)
        code = _exit_code(pid, limit)
        if code is None:
            return 1, NO_END, []
        said.seek(0)
        text = said.read()
        if code not in (0, 1, 2):
            print(text[-4000:], file=sys.stderr)
        failed = " ".join(FAILED.findall(text))
        rows.seek(0)
        reached = json.loads(rows.read() or "[]")
    return code, failed, reached


def _exit_code(pid: int, limit: float) -> int | None:
    """Wait for a child process to end, and return its exit code. After ``limit`` seconds, kill it
    and return None."""
    until = monotonic() + limit
    while monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main(count: int) -> None:
    """Answer requests until the input ends. The first ``count`` are collected only."""
    for name in OTHERS.split():
        import_module(name)
    for number, line in enumerate(sys.stdin):
        tests, files, limit = json.loads(line)
        if number < count:
            with redirect_stdout(io.StringIO()):
                answer = int(pytest.main(["--co", *OPTIONS, *tests])), "", []
        else:
            answer = _forked(tests, files, limit)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
