"""The bench: the package's structures on the test's database; a server behind TLS; workers that are
staged, and fleets of them."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.signals import LostJob, ownership_lost
from support.process import Process
from support.servers.cluster import Cluster, cluster
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.servers.managed import ManagedProxy, Manners
from support.servers.proxy import FaultProxy
from support.servers.server import ExternalServer, Server
from support.workers.bench import Bench
from support.workers.fleet import Fleet
from support.workers.scene import Scene
from support.workers.worker import Supervisor, Worker


@pytest.fixture
def make_bench(client: redis.Redis) -> Callable[..., Bench]:
    """`make_bench(owner_ttl=30, ...)`: the structures under other options."""

    def make(**options: Any) -> Bench:
        return Bench(client, **options)

    return make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


@pytest.fixture
def owner(bench: Bench) -> OwnerRecord:
    """This process as a registered owner of the queue `mail`: its record alone."""
    return bench.owner()


@pytest.fixture
def lost() -> Iterator[list[LostJob]]:
    """Jobs whose loss was announced."""
    jobs: list[LostJob] = []

    def receiver(lost: LostJob, **_: object) -> None:
        jobs.append(lost)

    ownership_lost.connect(receiver)
    yield jobs
    ownership_lost.disconnect(receiver)


@pytest.fixture
def own(fresh_server: Callable[..., Server]) -> redis.Redis:
    """A client of a server that nobody else uses: what it does is counted, or noted."""
    return fresh_server().client()


@pytest.fixture
def proxy(client: redis.Redis) -> Iterator[FaultProxy]:
    """On the way to the server, for whoever goes by `proxy.url()`."""
    with FaultProxy(client.connection_pool.connection_kwargs["port"]) as way:
        yield way


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    """A cluster of three, each with a replica."""
    with cluster(replicas=1) as made:
        yield made


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on this machine to make a certificate with")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = [openssl, *words.split(), names, "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture
def behind_tls(certificate: tuple[Path, Path]) -> Iterator[Callable[[Server], int]]:
    """`behind_tls(server)`: a port. The wheels' servers speak no TLS: a proxy does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certificate))
    with contextlib.ExitStack() as stack:
        yield lambda own: stack.enter_context(FaultProxy(own.port, context)).port


@pytest.fixture
def tls_port(behind_tls: Callable[[Server], int], fresh_server: Any) -> tuple[Server, int]:
    """A server behind TLS."""
    own = fresh_server()
    return own, behind_tls(own)


@pytest.fixture
def managed(
    fresh_server: Callable[..., Server], request: pytest.FixtureRequest
) -> Iterator[Callable[[Manners], tuple[Server, ManagedProxy]]]:
    """`managed(manners)`: a server of the test's own, and the service in front of it."""
    with contextlib.ExitStack() as stack:

        def rent(manners: Manners) -> tuple[Server, ManagedProxy]:
            context = None
            if manners.tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*map(str, request.getfixturevalue("certificate")))
            own = fresh_server(**manners.options)
            return own, stack.enter_context(ManagedProxy(own.port, manners, tls=context))

        yield rent


@pytest.fixture
def scenes(
    fresh_server: Callable[..., Server], remember: Callable[[Process], None], tmp_path: Path
) -> Iterator[Callable[..., list[Scene]]]:
    """`scenes("prefork", "solo", conf={...}, ...)`: a scene for each pool, all at once."""
    with contextlib.ExitStack() as stack:

        def stage(*pools: str, **settings: Any) -> list[Scene]:
            new = [Scene(fresh_server(), pool, tmp_path, **settings) for pool in pools]
            for scene in new:
                stack.callback(scene.close)
                remember(scene.worker)
            return new

        yield stage


@pytest.fixture
def supervised(worker: Callable[..., Worker]) -> Callable[..., Supervisor]:
    """`supervised(pool="threads", concurrency=8)`: a worker that is started again and again."""
    return lambda **settings: Supervisor(lambda: worker(ready=False, **settings))


@pytest.fixture
def suspected(client: redis.Redis, db: Database) -> Callable[..., None]:
    """`suspected(shop.hold, "a", 1.0)`: a job on probation, or `queue=...`: on that of a queue."""

    def put(task: Any, *args: Any, queue: str = "celery") -> None:
        task.apply_async(args, queue="aside")
        db.suspect(client.rpop("aside"), queue)

    return put


@pytest.fixture
def make_fleet(
    server: Server | ExternalServer,
    ledger: Ledger,
    remember: Callable[[Process], None],
    tmp_path: Path,
) -> Iterator[Callable[..., Fleet]]:
    """`make_fleet(pools={...}, conf={...}, app=...)`: one of the test's own."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Fleet:
            fleet = stack.enter_context(Fleet(server.url(), ledger, tmp_path, **options))
            for worker in fleet.workers.values():
                remember(worker)
            return fleet

        yield make
