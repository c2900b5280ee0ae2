"""Runs tests in forks of a process that has imported and collected them before: nine tenths of what
one run of a few tests costs. `python -m evidence.warm COUNT`, in the checkout whose tests they are.

Reads lists of tests as lines of JSON, and answers each with the one that fails first, or with
nothing. What was imported stays so: COUNT is how many lists are collected beforehand, those whose
code does not change. 0: it imports what others have written, and nothing of the checkout.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

OPTIONS = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--timeout=60"]
OTHERS = "celery.app.trace celery.worker kombu.transport.redis redis psutil hypothesis gevent"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)
LIMIT = 300  # seconds after which tests that do not end count as failed


class Warm:
    """The other side: asks such a process. Use as a context manager."""

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
        """Raises RuntimeError where tests fail though nothing was changed; runs them once."""
        if tests not in self._sound:
            if failed := self.run(tests):
                raise RuntimeError(f"{failed} fails though nothing was changed: it tells nothing")
            self._sound.append(tests)

    def run(self, tests: list[str]) -> str:
        """The test that fails first; empty where all pass. Raises RuntimeError if they cannot be
        run."""
        print(json.dumps(tests), file=self._process.stdin, flush=True)
        code, failed = json.loads(self._process.stdout.readline())
        if code not in (0, 1, 2):
            raise RuntimeError(f"pytest {' '.join(tests)} exits with {code}")
        return (failed or tests[0]) if code else ""

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()


def _forked(tests: list[str]) -> tuple[int, str]:
    """pytest's exit code, and the test that fails first, where it can be told."""
    with tempfile.TemporaryFile("w+") as said:
        if (pid := os.fork()) == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            os._exit(pytest.main([*OPTIONS, *tests]))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said.seek(0)
        text = said.read()
        if code not in (0, 1, 2):
            print(text[-4000:], file=sys.stderr)
        failed = FAILED.search(text)
    return code, failed[1] if failed else ""


def main(count: int) -> None:
    for name in OTHERS.split():
        import_module(name)
    for number, line in enumerate(sys.stdin):
        tests = json.loads(line)
        if number < count:
            with redirect_stdout(io.StringIO()):
                answer = int(pytest.main(["--co", *OPTIONS, *tests])), ""
        else:
            answer = _forked(tests)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
