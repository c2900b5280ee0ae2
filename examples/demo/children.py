"""The processes that the demo starts: each in a group of its own, with a log, and ended by us."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

GUARD = Path(__file__).with_name("guard.py")
ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL = 25

#: Seconds a worker gets to end in order before it is killed.
PATIENCE = 10.0


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


class Child:
    """One command. Its descendants are remembered, so that none of them outlives the demo."""

    def __init__(
        self, title: str, argv: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> None:
        self.title = title
        self.log = folder / f"{title.replace(' ', '-')}.log"
        guard = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid())]
        with self.log.open("ab") as out:
            self._popen = subprocess.Popen(
                [*guard, *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=dict(env),
                start_new_session=True,
            )
        self._descendants: set[psutil.Process] = set()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def alive(self) -> bool:
        return self._popen.poll() is None

    def logged(self, text: str) -> bool:
        """Whether `text` is in its log by now.

        Raises:
            DemoError: it has ended.
        """
        if text in self.log.read_text(errors="replace"):
            return True
        self.check()
        return False

    def check(self) -> None:
        """Raise DemoError, with the end of its log, if it has ended."""
        if not self.alive():
            raise DemoError(
                f"{self.title} ended unexpectedly (exit code {self._popen.returncode}). "
                f"The end of its log:\n{self.tail()}"
            )

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"  | {line}" for line in lines[-LOG_TAIL:]) or "  | (empty)"

    def sigkill(self) -> float:
        """SIGKILL the command alone, no descendant; the time at which that was done."""
        self._remember()
        self._popen.kill()
        at = time.time()
        self._popen.wait()  # a zombie is dead, too, but "gone" reads better
        return at

    def sigterm(self) -> None:
        self._remember()
        self._popen.terminate()

    def end(self, patience: float = 0.0) -> None:
        """Wait for it for `patience` seconds, then kill whatever is left of it."""
        self._remember()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(patience)
        if self.alive():  # not reaped yet, so that the group's number can be nobody else's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()
        for process in self._descendants:
            with contextlib.suppress(psutil.Error):  # psutil knows a reused pid
                process.kill()
        psutil.wait_procs(self._descendants, timeout=5)

    def _remember(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.alive():
                self._descendants.update(psutil.Process(self.pid).children(recursive=True))


class Children:
    """All processes of one demo, and their end."""

    def __init__(self, folder: Path, url: str, stock: bool) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "DEMO_URL": url,
            "DEMO_STOCK": "1" if stock else "0",
            "PYTHONPATH": os.pathsep.join(
                part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part
            ),
        }
        self.started: list[Child] = []

    def celery(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "celery", "-A", "examples.demo.app", *words]

    def worker(self, name: str, concurrency: int) -> Child:
        """`celery worker`, less the greetings between workers that take a second at start."""
        words = ["worker", "-c", str(concurrency), "-n", f"{name}@%h", "-l", "INFO"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        return self._start(f"worker {name}", [*words, *quiet])

    def beat(self) -> Child:
        schedule = str(self.folder / "schedule")
        return self._start("beat", ["beat", "-s", schedule, "--pidfile=", "-l", "INFO"])

    def run(self, *words: str, terminal: bool) -> str:
        """Run a command that ends by itself; what it printed, unless the terminal has that.

        Raises:
            DemoError: it failed.
        """
        done = subprocess.run(
            self.celery(*words),
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=None if terminal else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            said = ((done.stdout or "") + done.stderr).strip()
            raise DemoError(f"`celery {' '.join(words)}` failed ({done.returncode}):\n{said}")
        return (done.stdout or "").rstrip()

    def _start(self, title: str, words: list[str]) -> Child:
        child = Child(title, self.celery(*words), self.folder, self.env)
        self.started.append(child)
        return child

    def end_in_order(self) -> None:
        """SIGTERM to all, then wait: what a deploy does."""
        for child in self.started:
            child.sigterm()
        for child in self.started:
            child.end(PATIENCE)

    def end_now(self) -> None:
        for child in self.started:
            child.end()
