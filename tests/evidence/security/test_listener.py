"""Connections at a listener of ours: idle ones, slow ones, too many, and by another's name."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import psutil
import pytest

from celery_superfetch.console import metrics_server
from celery_superfetch.console.listener import OpenConnections, listening_sockets
from celery_superfetch.console.metrics_server import METRICS_MAX_CONNECTIONS, MetricsServer
from celery_superfetch.console.web import server
from support.process import Process
from support.servers.server import free_port
from support.visitors import HOSTS
from support.waiting import eventually
from support.workers.cli import superfetch_command
from support.workers.worker import process_env

#: Connections that send nothing to the page.
SLOW = 400


@pytest.fixture
def connect() -> Iterator[Callable[..., socket.socket]]:
    """`connect(port)`: a connection that says nothing by itself."""
    with ExitStack() as stack:

        def one(port: int) -> socket.socket:
            made = socket.create_connection(("127.0.0.1", port), timeout=30)
            return stack.enter_context(closing(made))

        yield one


def is_ended(connection: socket.socket) -> bool:
    """Return whether the listener has ended it, without an answer."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


# -- the rules


def test_a_connection_makes_room_by_how_long_it_has_waited():
    connections = OpenConnections[str](2, 60.0)
    assert connections.add("first") is None
    assert connections.add("second") is None
    connections.begin("first")
    assert connections.add("third") == "second"
    assert connections.add("fourth") == "third"
    connections.end("first")
    connections.begin("fourth")
    assert connections.add("fifth") == "first", "an answered one waits again"
    connections.begin("fifth")
    assert connections.add("sixth") == "sixth", "no other waits"
    connections.remove("fourth")
    assert connections.add("seventh") is None
    assert len(connections) == 2


def test_a_connection_is_overdue_only_while_its_client_has_to_act():
    connections = OpenConnections[str](9, 0.0)
    for name in ("silent", "asking", "reading"):
        connections.add(name)
    connections.begin("asking")
    connections.begin("reading")
    connections.end("reading")
    assert connections.overdue() == ["silent", "reading"]
    assert connections.overdue() == []
    connections.begin("silent")
    connections.end("silent")
    assert len(connections) == 1, "what is ended stays so"


# -- the exporter


@pytest.fixture
def exporter(
    env: Callable[..., dict[str, str]], keep: Callable[[Any], Any], tmp_path: Path
) -> Callable[..., int]:
    """`exporter("--host", "0.0.0.0")`: the port of a real one."""

    def start(*args: str, **settings: Any) -> int:
        command = superfetch_command("metrics", "--port", "0", *args)
        environ = process_env(env(**settings))
        process = keep(Process(command, log=tmp_path / f"{len(args)}.log", env=environ))
        process.wait_log("/metrics")
        [port] = re.findall(r"http://\S+:(\d+)/metrics", process.log())
        return int(port)

    return start


def test_the_exporter_on_loopback_answers_to_names_of_this_machine(exporter):
    at = f"http://127.0.0.1:{exporter()}/metrics"
    for name, status in HOSTS.items():
        answer = httpx.get(at, headers={"host": name})
        assert answer.status_code == status, name
        assert ("superfetch_up" in answer.text) is (status == 200)
    public = f"http://127.0.0.1:{exporter('--host', '0.0.0.0')}/metrics"
    assert httpx.get(public, headers={"host": "metrics.example"}).status_code == 200


def test_the_exporter_ends_a_head_that_comes_byte_by_byte(exporter, connect):
    """Each byte would put off the end of a timeout for silence."""
    port = exporter()
    slow = connect(port)
    eventually(lambda: drip(slow, b"G"), 60)
    assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200


# -- the exporter's server


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """`serve(app)`: the port of a metrics server of this process."""
    with ExitStack() as stack:

        def start(app: Any) -> int:
            metrics = MetricsServer(app, "127.0.0.1", 0)
            thread = threading.Thread(target=metrics.serve, daemon=True)
            thread.start()
            stack.callback(metrics.server_close)
            stack.callback(metrics.shutdown)
            return int(metrics.server_port)

        yield start


def test_where_all_are_being_answered_another_is_told_when_to_ask_again(serve):
    go_on, asked = threading.Event(), list[int]()

    def slow(_: Any, respond: Any) -> list[bytes]:
        asked.append(1)
        assert go_on.wait(60)
        respond("200 OK", [])
        return [b"well"]

    at = f"http://127.0.0.1:{serve(slow)}/"
    codes = list[int]()
    browsers = [
        threading.Thread(target=lambda: codes.append(httpx.get(at, timeout=60).status_code))
        for _ in range(METRICS_MAX_CONNECTIONS)
    ]
    try:
        for browser in browsers:
            browser.start()
        eventually(lambda: len(asked) == METRICS_MAX_CONNECTIONS)
        busy = httpx.get(at)
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    finally:
        go_on.set()
        for browser in browsers:
            browser.join()
    assert codes == [200] * METRICS_MAX_CONNECTIONS
    assert httpx.get(at).text == "well"


def test_an_answer_that_its_client_does_not_read_has_an_end(serve, connect, monkeypatch):
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.5)

    answering = list[threading.Thread]()

    def large(_: Any, respond: Any) -> list[bytes]:
        answering.append(threading.current_thread())
        respond("200 OK", [])
        return [b"x" * 50_000_000]

    deaf = connect(serve(large))
    deaf.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    [thread] = eventually(lambda: answering)
    eventually(lambda: not thread.is_alive(), message="it gives up")


def test_a_port_in_use_leaves_no_socket_open():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        before = psutil.Process().num_fds()
        with pytest.raises(OSError, match="in use"):
            MetricsServer(lambda *_: [], "127.0.0.1", taken.getsockname()[1])
        assert psutil.Process().num_fds() == before


@pytest.mark.parametrize("name", ["web..local", "x" * 64, "\udc80"])
def test_a_name_that_no_host_can_have_is_an_error_of_the_system(name):
    """The commands show an OSError as one line; Python raises a UnicodeError."""
    with pytest.raises(OSError, match="is not a host name or address"):
        listening_sockets(name, 0)


def test_an_address_that_this_machine_lacks_does_not_keep_it_from_the_others(monkeypatch):
    """In a container without IPv6, ``localhost`` has one."""
    absent = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))
    found = [absent, *socket.getaddrinfo("127.0.0.1", 0, type=socket.SOCK_STREAM)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    [listener] = listening_sockets("localhost", 0)
    with closing(listener):
        assert listener.getsockname()[0] == "127.0.0.1"
    found[:] = [absent]
    with pytest.raises(OSError, match="assign requested address"):
        listening_sockets("localhost", 0)


def test_listeners_send_without_delay():
    """Else the body of each answer waits 40 ms for the acknowledgement of its head."""
    [listener] = listening_sockets("127.0.0.1", 0)
    with listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as one:
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# -- the page's server


@pytest.fixture
def serve_page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[int, Any]]]:
    """`serve_page(app)`: port and server of an ASGI app, whose clients have half a second."""
    monkeypatch.setattr(server, "PAGE_WAIT_S", 0.5)
    with ExitStack() as stack:

        def start(app: Any) -> tuple[int, Any]:
            [listener] = listening_sockets("127.0.0.1", 0)
            stack.callback(listener.close)
            page = server.PageServer(app, lifespan="off")
            thread = threading.Thread(target=page.run, args=([listener],), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(setattr, page, "should_exit", True)
            eventually(lambda: page.started)
            return int(listener.getsockname()[1]), page

        yield start


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer with as many bytes as the path says, when the whole request is there."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(int(scope["path"][1:]) // 1000):
        await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def drip(connection: socket.socket, byte: bytes) -> bool:
    """Send a byte; return whether the connection has ended."""
    try:
        connection.send(byte)
        return is_ended(connection)
    except OSError:
        return True


def test_the_page_ends_slow_heads_slow_forms_and_who_does_not_read(serve_page, connect):
    port, page = serve_page(answer)
    head, form, deaf, idle = (connect(port) for _ in range(4))
    form.sendall(b"POST /0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.sendall(b"GET /30000000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    eventually(lambda: drip(head, b"G"), message="its head has an end")
    eventually(lambda: drip(form, b"a"), message="its form has an end")
    eventually(lambda: is_ended(idle))
    eventually(lambda: not page.open, message="the answer that is not read is given up")
    large = httpx.get(f"http://127.0.0.1:{port}/3000000")
    assert len(large.content) == 3_000_000, "a client that reads gets it all"


def test_a_request_that_takes_long_keeps_its_connection(serve_page):
    port, page = serve_page(slow := Slow())
    with ThreadPoolExecutor(1) as browser:
        asked = browser.submit(httpx.get, f"http://127.0.0.1:{port}/", timeout=60)
        eventually(lambda: slow.asked)
        until = monotonic() + 2 * server.PAGE_WAIT_S
        eventually(lambda: monotonic() > until)
        slow.go_on.set()
        assert asked.result().status_code == 200
    assert len(page.open) <= 1


def test_where_all_are_being_answered_the_page_says_when_to_ask_again(serve_page, monkeypatch):
    monkeypatch.setattr(server, "PAGE_MAX_CONNECTIONS", 2)
    port, _ = serve_page(slow := Slow())
    at = f"http://127.0.0.1:{port}/"
    with ThreadPoolExecutor(2) as browsers:
        asked = [browsers.submit(httpx.get, at, timeout=60) for _ in range(2)]
        eventually(lambda: slow.asked == 2)
        busy = httpx.get(at)
        slow.go_on.set()
        assert [one.result().status_code for one in asked] == [200, 200]
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    assert httpx.get(at).status_code == 200


class Slow:
    """An ASGI app that answers when it may."""

    def __init__(self) -> None:
        self.asked, self.go_on = 0, threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        while not self.go_on.is_set():
            await asyncio.sleep(0.01)
        await answer({"path": "/0"}, receive, send)


@pytest.mark.parametrize("without", ["", "bounded_listeners"])
def test_slow_connections_leave_the_page_to_others(env, keep, tmp_path, connect, without):
    """The control is the page without bounds: all stay open."""
    port = free_port()
    command = superfetch_command("web", "--port", str(port))
    environ = process_env({**env(), "WITHOUT": without})
    page = keep(Process(command, log=tmp_path / "web.log", env=environ))
    at = f"http://127.0.0.1:{port}/static/page.css"
    page.wait_log("http://")
    eventually(lambda: answers(at))
    rest = psutil.Process(page.pid).num_fds()
    slow = [connect(port) for _ in range(SLOW)]
    if without:
        eventually(lambda: psutil.Process(page.pid).num_fds() > SLOW)
        assert not any(map(is_ended, slow))
        return
    most = rest + server.PAGE_MAX_CONNECTIONS
    for _ in range(20):
        assert httpx.get(at, timeout=60).status_code == 200
    eventually(lambda: sum(map(is_ended, slow)) >= SLOW - server.PAGE_MAX_CONNECTIONS)
    assert psutil.Process(page.pid).num_fds() <= most + 20


def answers(at: str) -> bool:
    try:
        return httpx.get(at).status_code == 200
    except httpx.TransportError:
        return False
