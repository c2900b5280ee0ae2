"""A child process in a group of its own, with a log file, that never outlives the tests."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from support.hosts import GUARD, Host
from support.waiting import eventually

if TYPE_CHECKING:
    from typing_extensions import Self

#: In the environment of a command, and so of all that it starts: which command that was.
MARK = "SUPERFETCH_TESTS_COMMAND"
#: The signal upon which a worker writes the stacks of its threads to its log.
STACKS = 40
_numbers = itertools.count(1)
_open: set[str] = set()  # marks of commands that may run

# The kernel's "parent died" signal means the parent *thread*. A test may start processes from a
# thread of its own that ends early, so that one thread, which ends with pytest, starts them all.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="harness-spawner")


def guarded(argv: Sequence[str]) -> list[str]:
    """`argv`, started so that it dies with this process."""
    guard = [sys.executable, "-I", "-S", str(GUARD), "--parent", str(os.getpid())]
    return [*guard, "--", *argv]


def spawn(
    argv: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path
) -> subprocess.Popen[bytes]:
    """Start `argv` guarded, in its own session, with its output appended to `log`."""

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(
                guarded(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )

    return _spawner.submit(start).result()


def is_alive(process: psutil.Process) -> bool:
    """Alive and the same process: a zombie is dead, a reused pid is somebody else.

    A killed process is a zombie as soon as its first thread has ended. Until its last one has, its
    sockets are open: a job that comes meanwhile could still land for a worker of an earlier test.
    """
    try:
        if not process.is_running():
            return False
        return process.status() != psutil.STATUS_ZOMBIE or len(_threads(process.pid)) > 1
    except psutil.NoSuchProcess:
        return False


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:  # it is gone, or this is no Linux
        return []


class Process:
    """One running command. Everything it signals was started by it, at whatever depth.

    Arguments:
        env: its environment, and not this process's own.
        cwd: its directory, if that is not the one of its log.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] = os.environ,
        cwd: Path | None = None,
        host: Host | None = None,
        title: str = "",
    ) -> None:
        self.log_path = log
        self.title = title or Path(argv[0]).name
        self.host = host
        self._mark = f"{os.getpid()}-{next(_numbers)}"
        _open.add(self._mark)
        log.parent.mkdir(parents=True, exist_ok=True)
        marked = {**env, MARK: self._mark}
        command = host.command(argv) if host else argv
        self._popen = spawn(command, log, marked, cwd or log.parent)
        self._outer = psutil.Process(self._popen.pid)
        self._known: set[psutil.Process] = {self._outer}
        if host:
            host.attach(self._popen)

    # -- who is there ------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The command's pid as seen from here (inside a Host it sees itself as 1)."""
        return self.host.init_pid if self.host else self._popen.pid

    def children(self) -> list[psutil.Process]:
        """Living descendants of the command, oldest first."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._known.update(found)
        living = [child for child in found if is_alive(child)]
        return sorted(living, key=lambda child: (child.create_time(), child.pid))

    def alive(self) -> bool:
        return self._popen.poll() is None

    def survivors(self) -> list[psutil.Process]:
        """All that still lives of what was ever seen of this command."""
        self.children()
        self._popen.poll()  # reap: our own zombie would look alive to nobody but psutil
        return [process for process in self._known if is_alive(process)]

    def wait_exit(self, timeout: float = 30.0) -> int:
        """Reap the command; its exit code, negative for a signal."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.title} still runs after {timeout:g} s\n{self.tail()}"
            ) from None

    def wait_gone(self, timeout: float = 10.0) -> None:
        """Wait until nothing of it is left, its pool children included."""
        # Reaped as well: it may have become a zombie after `survivors` has looked for one.
        eventually(
            lambda: not self.survivors() and not self.alive(),
            timeout,
            message=f"{self.title} is gone",
        )

    # -- signals -----------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """Send to the command alone, as `kill` or a container's stop would."""
        self.children()  # remember them while their parent can still name them
        with contextlib.suppress(ProcessLookupError):
            if self.alive():
                os.kill(self.pid, number)

    def signal_all(self, number: int) -> None:
        """Send to the whole process group in one system call, as a terminal or systemd would."""
        strays = self.children()
        if self.alive():  # not yet reaped, so that the group id cannot be another's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, number)
            strays = [child for child in strays if _group(child.pid) != self._popen.pid]
        for process in strays:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP everything: a paused virtual machine, a very long garbage collection."""
        self.signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal_all(signal.SIGCONT)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    # -- the log -----------------------------------------------------------------------------

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def wait_log(self, text: str, timeout: float = 30.0) -> None:
        """Wait for `text` in the log; give up at once when the command has ended."""

        def seen_or_over() -> bool:
            return text in self.log() or not self.alive()

        try:
            eventually(seen_or_over, timeout, message=f"{text!r} in the log of {self.title}")
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.tail()}") from None
        if text not in self.log():
            code = self._popen.returncode
            raise AssertionError(f"{self.title} ended ({code}) before {text!r}\n{self.tail()}")

    def dump_stacks(self) -> None:
        """Have each living process of it that can do so (`workers/start.py`) write the stacks of
        its threads to its log, behind the state in which the kernel has it."""
        for process in self.survivors():
            with contextlib.suppress(psutil.Error, OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                caught = int(status.partition("SigCgt:")[2].split()[0], 16)
                if not caught >> (STACKS - 1) & 1:
                    continue
                state = process.status()
                with self.log_path.open("a") as log:
                    log.write(f"\nstacks of process {process.pid}, which is {state}:\n")
                before = self.log_path.stat().st_size
                process.send_signal(STACKS)
                with contextlib.suppress(AssertionError):
                    eventually(lambda: self.log_path.stat().st_size > before, 1)  # noqa: B023

    # -- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Kill whatever is left of it, and only that. May be called again."""
        self.signal_all(signal.SIGKILL)
        if self.alive():
            self._popen.kill()
        self._popen.wait(10)
        for process in self.survivors():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.wait_gone()
        _open.discard(self._mark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def all_of(*commands: Process) -> list[psutil.Process]:
    """What lives of some commands, whoever its parent is by now."""
    return _living({command._mark for command in commands}.__contains__)


def leftovers() -> list[psutil.Process]:
    """What runs on of commands that were closed: nobody saw it, and it has left their group."""
    ours = f"{os.getpid()}-"
    return _living(lambda mark: mark.startswith(ours) and mark not in _open)


def _living(fits: Callable[[str], bool]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if fits(process.environ().get(MARK, "")) and is_alive(process):
                found.append(process)
    return found


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
