"""A CPU quota for the processes of one worker: a cgroup, or signals where none can be made."""

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
#: The mount of all controllers (cgroup v2), and of that of the CPU (v1).
UNIFIED, LEGACY = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")
#: Tries to remove a group: it keeps a process that has ended until its parent has read its status.
REMOVALS = 100

_numbers = itertools.count(1)


class Quota:
    """A limit on processes and their children, until `end`; `means` is how it is imposed."""

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
            # It may have ended. One that it starts meanwhile is in its group.
            with contextlib.suppress(ProcessLookupError):
                (cgroup / "cgroup.procs").write_text(str(process.pid))

    def _leave(self) -> None:
        """Move all processes of the group to its parent, and remove the group."""
        if self._cgroup is None:
            return
        for _ in range(REMOVALS):
            procs = self._cgroup / "cgroup.procs"
            for pid in procs.read_text().split() if procs.exists() else ():
                with contextlib.suppress(OSError):
                    (self._cgroup.parent / "cgroup.procs").write_text(pid)
            try:
                self._cgroup.rmdir()
            except OSError:  # a process ends, or has begun since they were read
                time.sleep(0.01)
            else:
                break
        self._cgroup = None

    def _by_signals(self) -> None:
        """Stop the processes for all of each period but the quota."""
        while not self._ended.wait(QUOTA_US / 1e6):
            self._signal(signal.SIGSTOP)
            self._ended.wait((PERIOD_US - QUOTA_US) / 1e6)
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
