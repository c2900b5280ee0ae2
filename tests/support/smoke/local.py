"""What docker's Container is to pytest-celery, made of local processes of the harness."""

from __future__ import annotations

import signal as signals
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.hosts import Host
from support.process import Process
from support.servers.server import Server
from support.workers.worker import process_env


class LocalContainer(ABC):
    """The part of docker's Container that the nodes use. Its state is never a cached one."""

    def __init__(self, title: str) -> None:
        self.id = uuid.uuid4().hex
        self.name = f"{title}-{self.id[:12]}"
        self._paused = False

    @property
    def status(self) -> str:
        if not self.alive():
            return "exited"
        return "paused" if self._paused else "running"

    def reload(self) -> None:
        """Docker's caches what the engine said; there is nothing to do here."""
        return

    @abstractmethod
    def start(self) -> None: ...
    @abstractmethod
    def alive(self) -> bool: ...
    @abstractmethod
    def logs(self) -> bytes:
        """Of all its starts, as docker's."""

    @abstractmethod
    def fresh_log(self) -> str:
        """Since its last start."""

    @abstractmethod
    def kill(self, signal: str | int | None = None) -> None:
        """SIGKILL ends all of its processes, as the engine does; others reach the first one."""

    @abstractmethod
    def pause(self) -> None: ...
    @abstractmethod
    def unpause(self) -> None: ...
    @abstractmethod
    def stop(self, timeout: float = 10) -> None: ...
    @abstractmethod
    def close(self) -> None:
        """The end, also of its files. May be called again."""

    def restart(self, timeout: float = 10) -> None:
        self.stop(timeout)
        self.start()


class LocalServer(LocalContainer):
    """A server of the harness. A restart keeps its port and its data."""

    def __init__(self, title: str, **options: Any) -> None:
        super().__init__(title)
        self.server = Server(**options)
        self._old_logs = ""
        self.server.start()

    def start(self) -> None:
        self._old_logs += self.server.log()  # the harness begins a new one
        self.server.start()

    def alive(self) -> bool:
        return self.server.alive()

    def logs(self) -> bytes:
        return (self._old_logs + self.server.log()).encode()

    def fresh_log(self) -> str:
        return self.server.log()

    def kill(self, signal: str | int | None = None) -> None:
        if number_of(signal) == signals.SIGKILL:
            self.server.kill()
        else:
            self.server.stop()

    def pause(self) -> None:
        self.server.pause()
        self._paused = True

    def unpause(self) -> None:
        self.server.resume()
        self._paused = False

    def stop(self, timeout: float = 10) -> None:
        self.server.stop()

    def close(self) -> None:
        self.server.close()


class LocalWorker(LocalContainer):
    """A process in a directory; `%h` in its command is its id, as in a container. `isolated`: with
    process ids and a host name of its own, too."""

    def __init__(
        self,
        title: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        files: Mapping[str, bytes],
        directory: Path,
        isolated: bool = False,
    ) -> None:
        super().__init__(title)
        program, *arguments = argv
        self._argv = [str(Path(sys.executable).with_name(program))]
        self._argv += [word.replace("%h", self.id[:12]) for word in arguments]
        self._env = process_env({k: v for k, v in env.items() if k != "PYTHONPATH"})
        self._directory = directory
        self._isolated = isolated
        for name, content in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content)
        self._starts: list[Process] = []
        self.start()

    @property
    def process(self) -> Process:
        return self._starts[-1]

    def start(self) -> None:
        process = Process(
            self._argv,
            log=self._directory / f"{self.name}-{len(self._starts)}.log",
            env=self._env,
            host=Host(self.id[:12]) if self._isolated else None,
            title=self.name,
        )
        self._starts.append(process)

    def alive(self) -> bool:
        return self.process.alive()

    def logs(self) -> bytes:
        return "".join(process.log() for process in self._starts).encode()

    def fresh_log(self) -> str:
        return self.process.log()

    def kill(self, signal: str | int | None = None) -> None:
        number = number_of(signal)
        if number == signals.SIGKILL:
            self.process.signal_all(number)
            self.process.wait_exit()
        else:
            self.process.signal(number)

    def pause(self) -> None:
        self.process.freeze()
        self._paused = True

    def unpause(self) -> None:
        self.process.thaw()
        self._paused = False

    def stop(self, timeout: float = 10) -> None:
        self.unpause()
        self.process.signal(signals.SIGTERM)
        try:
            self.process.wait_exit(timeout)
        except AssertionError:
            self.process.signal_all(signals.SIGKILL)

    def close(self) -> None:
        for process in self._starts:
            process.close()


def number_of(signal: str | int | None) -> int:
    """Docker takes names and numbers, and SIGKILL for nothing."""
    if isinstance(signal, str):
        return signals.Signals[signal]
    return signals.SIGKILL if signal is None else signal
