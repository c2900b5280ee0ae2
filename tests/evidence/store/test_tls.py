"""A URL whose scheme is not the server's: said within seconds, and a slow server is waited for."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout

from celery_superfetch.store.redis import tls
from celery_superfetch.store.redis.tls import WrongScheme
from celery_superfetch.store.redis.urls import client_at
from support.servers.server import Server
from support.waiting import eventually
from support.workers.cli import superfetch_command
from support.workers.worker import app_env, process_env

NO_TLS = "does not speak TLS: use redis:// instead of rediss://"
SPEAKS_TLS = "speaks TLS: use rediss:// instead of redis://"
PATIENCE = 1.5  # seconds, of a client of these tests


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address is known, and a handshake is suspected soon."""
    monkeypatch.setattr(tls, "_answered", set())
    monkeypatch.setattr(tls, "_plain", set())
    monkeypatch.setattr(tls, "HANDSHAKE_S", 0.3)


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What servers were asked to find out whether they speak TLS."""
    asked, first_byte = list[bytes](), tls._first_byte

    def ask(connection: object, question: bytes) -> bytes:
        asked.append(question)
        return first_byte(connection, question)

    monkeypatch.setattr(tls, "_first_byte", ask)
    return asked


def without_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_first_byte", lambda *_: b"")


def client(port: int, scheme: str) -> Redis:
    return client_at(f"{scheme}://127.0.0.1:{port}/0", "", "", PATIENCE)


def test_a_plain_server_is_found_by_a_client_that_wants_tls(fresh_server, probes):
    own = client(fresh_server().port, "rediss")
    with pytest.raises(WrongScheme, match=NO_TLS):
        own.ping()
    assert probes == [tls.PING_BYTES]
    with pytest.raises(WrongScheme, match=NO_TLS):
        own.ping()
    assert probes == [tls.PING_BYTES] * 2, "the second connection begins with it"


@pytest.mark.parametrize("options", [{"requirepass": "secret"}, {"maxclients": 1}], ids=str)
def test_a_plain_server_that_refuses_is_found_as_well(fresh_server, options):
    server = fresh_server(**options)
    with pytest.raises(WrongScheme, match=NO_TLS):
        client(server.port, "rediss").ping()


def test_control_without_the_probe_a_plain_server_is_waited_for_to_the_end(
    fresh_server, monkeypatch
):
    without_probes(monkeypatch)
    with pytest.raises(RedisTimeout):
        client(fresh_server().port, "rediss").ping()


def test_a_tls_server_is_found_by_a_plain_client(tls_port, probes):
    _, port = tls_port
    with pytest.raises(WrongScheme, match=SPEAKS_TLS):
        client(port, "redis").ping()
    assert probes[0] == tls.PING_BYTES
    assert len(probes) == 2


def test_control_without_the_probe_a_tls_server_only_hangs_up(tls_port, monkeypatch):
    without_probes(monkeypatch)
    _, port = tls_port
    with pytest.raises(RedisConnectionError) as raised:
        client(port, "redis").ping()
    assert "TLS" not in str(raised.value)


def test_a_server_that_has_answered_is_not_probed(fresh_server, tls_port, probes):
    plain = fresh_server()
    behind, port = tls_port
    clients = client(plain.port, "redis"), client(port, "rediss")
    assert all(own.ping() for own in clients)
    for server, own in zip((plain, behind), clients, strict=True):
        server.kill()
        with pytest.raises(RedisConnectionError):
            own.ping()
    assert probes == []


@contextmanager
def slow_tls(context: ssl.SSLContext) -> Iterator[tuple[int, list[str]]]:
    """A TLS server that stands still until two connections wait, and then serves one more."""
    log, ends = list[str](), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            silent = []
            for name in ("handshake", "probe"):
                silent.append(listener.accept()[0])
                log.append(name)
            raw, _ = listener.accept()
            with context.wrap_socket(raw, server_side=True):
                log.append("served")
                ends.wait(30)
            for one in silent:
                one.close()

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield listener.getsockname()[1], log
        ends.set()
        serving.join(10)


def test_a_slow_tls_server_is_waited_for(certificate, monkeypatch):
    monkeypatch.setattr(tls, "PROBE_S", 0.2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certificate))
    with slow_tls(context) as (port, log):
        own = client_at(f"rediss://127.0.0.1:{port}/0", "", "", 10.0)
        connection = own.connection_pool.connection_class(
            **{**own.connection_pool.connection_kwargs, "socket_timeout": 10.0}
        )
        opened = connection._connect()
        assert opened.gettimeout() == connection.socket_timeout == 10.0
        eventually(lambda: log == ["handshake", "probe", "served"])
        opened.close()


@pytest.mark.parametrize("scheme", ["rediss", "redis"])
def test_commands_and_workers_say_which_scheme_the_server_speaks(
    fresh_server: Callable[..., Server], request, scheme
):
    server = fresh_server()
    port, text = server.port, NO_TLS
    if scheme == "redis":
        port, text = request.getfixturevalue("behind_tls")(server), SPEAKS_TLS
    query = "?ssl_cert_reqs=none" if scheme == "rediss" else ""
    url = f"{scheme}://127.0.0.1:{port}/0{query}"
    probe = "import sys; from celery_superfetch.console.probe import main; sys.exit(main())"
    worker = [sys.executable, "-m", "celery", "-A", "support.apps.shop", "worker", "-P", "solo"]
    lines = {
        "status": superfetch_command("status"),
        "check": superfetch_command("check", "--timeout", "60"),
        "doctor": superfetch_command("doctor"),
        "superfetch-check": [sys.executable, "-c", probe, "--timeout", "60"],
        "worker": [*worker, "--without-gossip", "--without-mingle", "--without-heartbeat"],
    }
    retries = {"broker_connection_max_retries": 1}
    app = app_env(url, ledger_url="", result_url="", conf=retries)
    env = process_env({**app, "CELERY_BROKER_URL": url})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = {name: subprocess.Popen(line, env=env, **pipes) for name, line in lines.items()}
    try:
        said = {name: process.communicate(timeout=120)[0] for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
    assert {name: text in out for name, out in said.items()} == dict.fromkeys(lines, True), said
