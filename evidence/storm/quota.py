"""Limit the CPU time of one worker's processes: with a cgroup, or with signals if the program may
not make one.

`harms.py` uses it. If the program is killed, an empty cgroup may be left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import psutil

#: The quota of each period, in microseconds: five percent of one CPU.
QUOTA_US, PERIOD_US = 5_000, 100_000
#: Where all controllers are mounted (cgroup v2), and where that of the CPU is (v1).
UNIFIED, LEGACY = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")
#: Tries to remove a cgroup, 0.01 s apart: a process that has ended stays in it until its parent has
#: read its exit status.
REMOVALS = 100

_numbers = itertools.count(1)


class Quota:
    """A limit on processes and their children, until `end`.

    ``means`` says how it is imposed: "cgroup v2", "cgroup v1" or "SIGSTOP" (then only the processes
    that are passed are limited).
    """

    def __init__(self, processes: list[psutil.Process]) -> None:
        self._processes = processes
        self._cgroup: Path | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._by_signals, name="quota", daemon=True)
        name = f"storm-{os.getpid()}-{next(_numbers)}"
        for parent in (UNIFIED, LEGACY):
            try:
                self._limit(parent / name)
            except OSError:
                self._leave()
            else:
                self.means = "cgroup v2" if parent is UNIFIED else "cgroup v1"
                return
        self.means = "SIGSTOP"
        self._thread.start()

    def end(self) -> None:
        """Lift the limit."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._leave()

    def _limit(self, cgroup: Path) -> None:
        """Make a cgroup with the quota, and move the processes there; raise OSError on failure."""
        cgroup.mkdir()
        self._cgroup = cgroup
        if (cgroup / "cpu.max").exists():
            (cgroup / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        elif (cgroup / "cpu.cfs_quota_us").exists():
            (cgroup / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (cgroup / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        else:
            raise FileNotFoundError(f"{cgroup} has no controller of the CPU")
        for process in self._processes:
            # The process may have ended. A child that it starts meanwhile is limited only if the
            # process has been moved before.
            with contextlib.suppress(ProcessLookupError):
                (cgroup / "cgroup.procs").write_text(str(process.pid))

    def _leave(self) -> None:
        """Move all processes of the cgroup to its parent, and remove it."""
        if self._cgroup is None:
            return
        for _ in range(REMOVALS):
            procs = self._cgroup / "cgroup.procs"
            for pid in procs.read_text().split() if procs.exists() else ():
                with contextlib.suppress(OSError):
                    (self._cgroup.parent / "cgroup.procs").write_text(pid)
            try:
                self._cgroup.rmdir()
            except OSError:  # a process is still there: it ends, or was started after the read
                time.sleep(0.01)
            else:
                break
        self._cgroup = None

    def _by_signals(self) -> None:
        """Run the processes for the quota of each period, and stop them for the remainder."""
        while not self._ended.wait(QUOTA_US / 1e6):
            self._signal(signal.SIGSTOP)
            self._ended.wait((PERIOD_US - QUOTA_US) / 1e6)
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
