"""Celery's smoke tests: their containers are processes of this machine, and `install()` is the last
line of the workers' app. Who sends is stock in both halves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytest_docker_tools.wrappers.container
from engine import Engine
from plugin import OURS

INSTALL = b"\nimport celery_superfetch\ncelery_superfetch.install(app)\n"

# Ports are where the engine says, also where all this runs in a real container.
pytest_docker_tools.wrappers.container.tests_inside_container = lambda: False


class DockerClient:
    """Takes the place of pytest-docker-tools' fixture, whose plugin is loaded after this module."""

    @pytest.fixture(scope="session")
    @classmethod
    def docker_client(cls) -> Iterator[Engine]:
        engine = Engine({"app.py": INSTALL} if OURS else {})
        yield engine
        engine.close()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(DockerClient())
