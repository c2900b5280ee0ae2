"""Real `celery worker` and `celery beat` processes, and the ways in which they die."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.hosts import Host
from support.process import Process
from support.waiting import eventually

TESTS = Path(__file__).resolve().parents[2]
#: What takes the place of ``-m celery``.
CELERY = ("-m", "support.workers.start")
#: The installed command; Celery cannot execute ``python -m celery`` again.
SCRIPT = str(Path(sys.executable).with_name("celery"))
_numbers = itertools.count(1)


def app_env(
    url: str,
    *,
    ledger_url: str,
    superfetch: bool = True,
    options: Mapping[str, Any] | None = None,
    conf: Mapping[str, Any] | None = None,
    result_url: str | None = None,
) -> dict[str, str]:
    """What configures the shop, in a worker's environment or for an app in this process."""
    return {
        "BROKER_URL": url,
        "RESULT_URL": url if result_url is None else result_url,
        "LEDGER_URL": ledger_url,
        "SUPERFETCH": "1" if superfetch else "0",
        "SUPERFETCH_OPTIONS": json.dumps(dict(options or {})),
        "CONF": json.dumps(dict(conf or {})),
    }


def app_module(app: str) -> str:
    """Where an app is that is named without its package: beside the shop."""
    return app if "." in app else f"support.apps.{app}"


def process_env(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, plus where to import the apps and the package from."""
    path = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        # Kept, also where nobody asks for it: some hundred starts would compile the package anew.
        "PYTHONDONTWRITEBYTECODE": "",
        **extra,
    }


class Worker(Process):
    """A worker in its own process group. Its children are the pool's processes (prefork).

    Mingle and gossip are off unless asked for: they cost a second at start, for every worker.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        app: str = "shop",
        pool: str = "prefork",
        concurrency: int = 2,
        name: str | None = None,
        queues: Sequence[str] = (),
        args: Sequence[str] = (),
        neighbours: bool = False,
        loglevel: str = "INFO",
        host: Host | None = None,
        directory: Path,
        program: Sequence[str] = CELERY,
    ) -> None:
        self.name = name or f"w{next(_numbers)}"
        self.pool = pool
        # With --autoscale the pool's size is not known beforehand.
        autoscaled = any(arg.startswith("--autoscale") for arg in args)
        self._children = concurrency if pool == "prefork" and not autoscaled else 0
        # -P and -A stand apart from their values: celery scans sys.argv for them to patch gevent.
        argv = [sys.executable, *program, "-A", app_module(app), "worker", "-P", pool]
        argv += ["-c", str(concurrency), "-n", f"{self.name}@%h", "-l", loglevel]
        if queues:
            argv += ["-Q", ",".join(queues)]
        if not neighbours:
            argv += ["--without-mingle", "--without-gossip"]
        super().__init__(
            [*argv, *args],
            log=directory / f"{self.name}-{next(_numbers)}.log",
            env=process_env(env),
            host=host,
            title=f"worker {self.name}",
        )

    def wait_ready(self) -> Worker:
        """Until it consumes; a pool of processes is complete by then, too."""
        self.wait_log(" ready.", 60)
        eventually(lambda: len(self.children()) >= self._children, 10, message="the pool is full")
        return self

    def term(self) -> None:
        """SIGTERM to the MainProcess: a warm shutdown."""
        self.signal(signal.SIGTERM)

    def stop(self) -> None:
        """Be told to stop, and do so in order."""
        self.term()
        assert self.wait_exit() == 0, self.tail()

    def term_all(self) -> None:
        """SIGTERM to the whole group, pool children included, as systemd does by default."""
        self.signal_all(signal.SIGTERM)

    def quit(self) -> None:
        """SIGQUIT to the MainProcess: a cold shutdown."""
        self.signal(signal.SIGQUIT)

    def kill9_main(self) -> None:
        """SIGKILL the MainProcess alone; what becomes of its children is the kernel's affair."""
        self.signal(signal.SIGKILL)

    def kill9_all(self) -> None:
        """SIGKILL everything at once: power failure, `docker kill`, eviction."""
        if self.host:
            self.host.kill()
        else:
            self.signal_all(signal.SIGKILL)

    def die(self) -> None:
        """``kill9_all``, and wait until nothing of it is left."""
        self.kill9_all()
        self.wait_gone()

    def kill9_child(self, index: int = 0) -> int:
        """SIGKILL one process of the pool, as the kernel's OOM killer does; its pid."""
        child = self.children()[index]
        child.send_signal(signal.SIGKILL)
        return int(child.pid)


class Supervisor:
    """Starts a worker again whenever it ends, as systemd or Kubernetes does."""

    def __init__(self, start: Callable[[], Worker]) -> None:
        self._start = start
        self.worker = start()
        self.restarts = 0

    def until(self, done: Callable[[], object], within: float = 120.0) -> None:
        def look() -> bool:
            if not self.worker.alive():
                self.worker = self._start()
                self.restarts += 1
            return bool(done())

        eventually(look, within)


class Beat(Process):
    """`celery beat` with a schedule file that nobody else uses."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        app: str = "shop",
        args: Sequence[str] = (),
        loglevel: str = "INFO",
        host: Host | None = None,
        directory: Path,
    ) -> None:
        number = next(_numbers)
        argv = [sys.executable, *CELERY, "-A", app_module(app), "beat", "-l", loglevel]
        argv += ["-s", str(directory / f"schedule-{number}"), "--pidfile="]
        super().__init__(
            [*argv, *args],
            log=directory / f"beat-{number}.log",
            env=process_env(env),
            host=host,
            title="beat",
        )

    def wait_ready(self) -> Beat:
        self.wait_log("beat: Starting", 60)
        return self
