"""The containers of a setup: stock pytest-celery's, and the same over local processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest_celery.vendors.worker.tasks
from pytest_celery import CeleryTestContainer, CeleryWorkerContainer, RedisContainer
from pytest_docker_tools.exceptions import ContainerFailed

from support.smoke.local import LocalContainer, LocalServer, LocalWorker
from support.waiting import eventually
from support.workers.worker import TESTS, app_env

PING = "pytest_celery.vendors.worker.tasks"
# An image needs the package and none of the tests: a node's directory gets these.
FILES = {
    "app.py": TESTS / "support" / "apps" / "shop.py",
    "support/apps/build.py": TESTS / "support" / "apps" / "build.py",
    "support/servers/ledger.py": TESTS / "support" / "servers" / "ledger.py",
    f"{PING.replace('.', '/')}.py": Path(pytest_celery.vendors.worker.tasks.__file__),
}


class ShopContainer(CeleryWorkerContainer):
    """A worker of the harness's shop, in whatever kind of container."""

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        alone = ("--without-mingle", "--without-gossip")
        return super().command("--concurrency=2", *alone, *args, **kwargs)

    @classmethod
    def initial_content(cls, **kwargs: Any) -> dict[str, bytes]:
        """The shop is configured by its environment alone, so nothing is written into it."""
        content = {name: path.read_bytes() for name, path in FILES.items()}
        folders = {folder for name in FILES for folder in PurePosixPath(name).parents}
        # pytest-celery's ping task without pytest-celery: a package of that name in the way.
        packages = {f"{folder}/__init__.py": b"" for folder in folders if folder.name}
        return {**packages, **content}

    @classmethod
    def environment(
        cls, cluster_config: Mapping[str, Any], superfetch: bool, options: Mapping[str, Any]
    ) -> dict[str, str]:
        env = cls.initial_env(dict(cluster_config))
        results = env["CELERY_RESULT_BACKEND"]
        # The ledger stands beside the results: what happens to the broker does not touch it.
        shop = app_env(
            env["CELERY_BROKER_URL"],
            ledger_url=results,
            result_url=results,
            superfetch=superfetch,
            options=options,
            conf={"imports": [PING]},
        )
        return {**env, **shop}

    def pause(self) -> None:
        """SIGSTOP for all of it."""
        self._container.pause()

    def unpause(self) -> None:
        self._container.unpause()


class OnProcess(CeleryTestContainer):
    """A container that is a local process: no network of its own, no ports to wait for."""

    _container: LocalContainer

    def ready(self) -> bool:
        prompt = self.ready_prompt or ""
        eventually(
            lambda: prompt in self._container.fresh_log() or self.status == "exited",
            60,
            message=f"{self.name} is ready",
        )
        if self.status == "exited":
            raise ContainerFailed(self, f"{self.name} has ended:\n{self.logs()[-2000:]}")
        return True

    def teardown(self) -> None:
        self._container.close()


class ValkeyOnProcess(OnProcess, RedisContainer):
    _container: LocalServer

    @property
    def host_url(self) -> str:
        return self._container.server.url()

    url = host_url  # workers are on this host, too

    @property
    def hostname(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return self._container.server.port


class ShopOnProcess(OnProcess, ShopContainer):
    _container: LocalWorker
