"""A Docker engine without Docker, as far as pytest-docker-tools asks one.

A container of a worker is a process with a host name and process ids of its own; one of Redis is a
server of the harness. Images that are neither are not there: a test that wants one is skipped.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from support.machines import Seat
from support.smoke.local import LocalContainer, LocalServer, LocalWorker

BIN = Path(sys.executable).parent
#: A line of /proc/net/tcp: who asks wants to know whether 6379 is open, as it is in a container.
LISTENS = b"0: 0100007F:18EB 00000000:0000 0A"


class Engine:
    """Docker's client. `appended` is added to files that a volume begins with."""

    def __init__(self, appended: Mapping[str, bytes]) -> None:
        self._appended = appended
        self._scratch = Path(tempfile.mkdtemp(prefix="superfetch-engine-"))
        self._containers: list[LocalContainer] = []
        self.images = SimpleNamespace(pull=self._pull, build=self._build)
        self.networks = SimpleNamespace(create=self._create_network)
        self.volumes = SimpleNamespace(create=self._create_volume)
        self.containers = SimpleNamespace(run=self._run, create=self._create_container)

    def close(self) -> None:
        for container in self._containers:
            container.close()
        shutil.rmtree(self._scratch)

    # -- images, networks, volumes ---------------------------------------------------------------

    def _pull(self, repository: str, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(id=repository)

    def _build(self, tag: str = "", **_: Any) -> tuple[SimpleNamespace, list[str]]:
        return SimpleNamespace(id=tag), []

    def _create_network(self, name: str, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(id=name, name=name, remove=lambda: None)

    def _create_volume(self, name: str, **_: Any) -> SimpleNamespace:
        directory = self._scratch / name
        directory.mkdir()
        return SimpleNamespace(name=name, remove=lambda force: shutil.rmtree(directory))

    # -- containers ------------------------------------------------------------------------------

    def _create_container(self, volumes: Mapping[str, Any], **_: Any) -> SimpleNamespace:
        """One that is there to fill a volume, and never starts."""
        (name,) = volumes

        def put_archive(path: str, archive: BinaryIO) -> None:
            with tarfile.open(fileobj=archive) as files:
                files.extractall(self._scratch / name)
            for file, text in self._appended.items():
                with (self._scratch / name / file).open("ab") as out:
                    out.write(text)

        return SimpleNamespace(put_archive=put_archive, remove=lambda force: None)

    def _run(
        self,
        image: str,
        command: str | Sequence[str] | None = None,
        environment: Mapping[str, Any] | None = None,
        volumes: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> LocalContainer:
        container: LocalContainer
        if "redis" in image:
            container = RedisInEngine("redis")
        elif command and image.startswith("t/smoke/worker:") and "legacy" not in image:
            (app,) = (self._scratch / name for name in volumes or () if name.startswith("pytest-"))
            words = shlex.split(command) if isinstance(command, str) else command
            container = WorkerInEngine(words, environment or {}, app)
        else:
            pytest.skip(f"no image {image} without Docker")
        self._containers.append(container)
        return container


class InEngine(LocalContainer):
    """What a container tells of itself, and what ends it."""

    def remove(self, force: bool) -> None:
        self.close()

    def _attributes(self, hostname: str, ports: Mapping[str, Any], status: int) -> dict[str, Any]:
        return {
            "Config": {"Hostname": hostname},
            "NetworkSettings": {"Networks": {}, "Ports": ports},
            "State": {"ExitCode": status},
        }


class RedisInEngine(InEngine, LocalServer):
    @property
    def attrs(self) -> dict[str, Any]:
        ports = {"6379/tcp": [{"HostPort": self.server.port}]}
        return self._attributes(f"127.0.0.1:{self.server.port}", ports, 0)

    def exec_run(self, command: str | Sequence[str]) -> tuple[int, bytes]:
        if isinstance(command, str):
            return 0, LISTENS if self.alive() else b""
        program, *words = command
        assert program == "redis-cli"
        return 0, str(self.server.client().execute_command(*words)).encode()


class WorkerInEngine(InEngine, LocalWorker):
    def __init__(
        self, command: Sequence[str], environment: Mapping[str, Any], directory: Path
    ) -> None:
        env = {name: str(value) for name, value in environment.items()}
        # A container has one port 6379, this machine as many as there are servers.
        env["REDIS_HOST"], _, env["REDIS_PORT"] = env["REDIS_HOST"].partition(":")
        env |= {"C_FORCE_ROOT": "1", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        super().__init__("worker", command, env, {}, directory, isolated=True)

    @property
    def attrs(self) -> dict[str, Any]:
        status = 0 if self.alive() else self.process.wait_exit()
        return self._attributes(self.id[:12], {}, status)

    def exec_run(self, command: str) -> tuple[int, bytes]:
        script = f"cd {shlex.quote(str(self._directory))} && {command}"
        argv = Seat(self.id[:12], self.process.pid).command(["sh", "-c", script])
        done = subprocess.run(argv, capture_output=True, env=self._env, check=False)
        return done.returncode, done.stdout + done.stderr
