"""pytest-celery's setup, on local processes or, with `--nodes=docker`, in containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from celery import Celery, _state
from pytest_celery import (
    DEFAULT_WORKER_CONTAINER_TIMEOUT,
    DEFAULT_WORKER_VOLUME,
    CeleryTestBackend,
    CeleryTestBroker,
    CeleryTestSetup,
    CeleryTestWorker,
    RedisContainer,
    RedisTestBackend,
    RedisTestBroker,
)
from pytest_docker_tools import build, container, fxtr, volume

from support.smoke.local import LocalServer, LocalWorker
from support.smoke.nodes import ShopContainer, ShopOnProcess, ValkeyOnProcess

ROOT = Path(__file__).resolve().parents[3]
# Its data outlives it, as a broker's should.
DURABLE = {"appendonly": "yes", "appendfsync": "always"}


@pytest.fixture(scope="session")
def in_docker(pytestconfig: pytest.Config) -> bool:
    """Whether the nodes are containers; a skip where they should be and cannot."""
    if pytestconfig.getoption("nodes", "process") != "docker":
        return False
    try:
        docker.from_env().ping()
    except Exception as exc:
        pytest.skip(f"--nodes=docker needs a Docker engine: {exc}")
    return True


@pytest.fixture
def superfetch() -> bool:
    """Parametrize with False for the control: workers on the stock transport."""
    return True


@pytest.fixture
def options() -> dict[str, Any]:
    """Options of `celery_superfetch.install` in the workers."""
    return {"heartbeat_interval": 1, "reap_interval": 1}


# -- servers -------------------------------------------------------------------------------------


def valkey(title: str, **settings: Any) -> Iterator[ValkeyOnProcess]:
    local = LocalServer(title, **settings)
    yield ValkeyOnProcess(local)
    local.close()


@pytest.fixture
def broker_on_process() -> Iterator[ValkeyOnProcess]:
    yield from valkey("broker", **DURABLE)


@pytest.fixture
def backend_on_process() -> Iterator[ValkeyOnProcess]:
    yield from valkey("backend")


@pytest.fixture
def default_redis_broker_command() -> list[str]:
    """In a container."""
    durable = (word for name, value in DURABLE.items() for word in (f"--{name}", value))
    return RedisContainer.command(*durable)


@pytest.fixture
def celery_broker(request: pytest.FixtureRequest, in_docker: bool) -> CeleryTestBroker:
    if in_docker:
        return request.getfixturevalue("celery_redis_broker")
    return RedisTestBroker(request.getfixturevalue("broker_on_process"))


@pytest.fixture
def celery_backend(request: pytest.FixtureRequest, in_docker: bool) -> Iterator[CeleryTestBackend]:
    if in_docker:
        yield request.getfixturevalue("celery_redis_backend")
        return
    node = RedisTestBackend(request.getfixturevalue("backend_on_process"))
    yield node
    node.teardown()  # lets go of results before their server is gone


# -- the worker ----------------------------------------------------------------------------------


@pytest.fixture
def default_worker_env(
    celery_worker_cluster_config: dict[str, Any], superfetch: bool, options: dict[str, Any]
) -> dict[str, str]:
    return ShopContainer.environment(celery_worker_cluster_config, superfetch, options)


@pytest.fixture
def worker_on_process(
    default_worker_env: dict[str, str], tmp_path: Path
) -> Iterator[ShopOnProcess]:
    local = LocalWorker(
        "worker",
        ShopOnProcess.command(),
        default_worker_env,
        ShopOnProcess.initial_content(),
        tmp_path,
    )
    yield ShopOnProcess(local)
    local.close()


@pytest.fixture
def default_worker_container_cls() -> type[ShopContainer]:
    return ShopContainer


@pytest.fixture
def default_worker_initial_content() -> dict[str, bytes]:
    return ShopContainer.initial_content()


shop_image = build(
    path=str(ROOT), dockerfile="tests/evidence/smoke/Dockerfile", tag="superfetch-smoke"
)
shop_volume = volume(initial_content=fxtr("default_worker_initial_content"))
default_worker_container = container(
    image="{shop_image.id}",
    environment=fxtr("default_worker_env"),
    network="{default_pytest_celery_network.name}",
    volumes={"{shop_volume.name}": DEFAULT_WORKER_VOLUME},
    wrapper_class=ShopContainer,
    timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
    command=fxtr("default_worker_command"),
)


@pytest.fixture
def celery_worker(
    request: pytest.FixtureRequest,
    in_docker: bool,
    celery_setup_app: Celery,
    default_worker_env: dict[str, str],
) -> CeleryTestWorker:
    """Names what both kinds need, so that a test can parametrize it."""
    if in_docker:
        return request.getfixturevalue("celery_setup_worker")
    on_process = request.getfixturevalue("worker_on_process")
    on_process.ready()
    return CeleryTestWorker(on_process, app=celery_setup_app)


# -- the setup -----------------------------------------------------------------------------------


@pytest.fixture
def celery_setup_app(
    celery_setup_cls: type[CeleryTestSetup], celery_setup_config: dict[str, Any]
) -> Iterator[Celery]:
    """A stock producer. The process's current app is another one again when the test is over."""
    before = _state._tls.current_app
    app = celery_setup_cls.create_setup_app(celery_setup_config, celery_setup_cls.name())
    yield app
    app.close()
    _state._tls.current_app = before
