"""What goes wrong between workers and their server, by name, and how it is done."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha1
from typing import cast

import pytest
import redis

from celery_superfetch.store.redis.server import FLAGS_LINE, PLAIN_LINE
from support.servers.proxy import Words
from support.servers.server import Server
from support.waiting import eventually


def kill_connections(client: redis.Redis) -> int:
    """CLIENT KILL every connection but the one that says so; how many there were."""
    killed = 0
    for kind in ("normal", "pubsub"):
        killed += cast(
            "int", client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        )
    return killed


def killed_and_restarted(server: Server) -> None:
    """SIGKILL and a new start: a power failure. What it had confirmed is there again only with
    `appendonly=True, appendfsync="always"`.
    """
    server.kill()
    server.start()


@contextlib.contextmanager
def another_type(client: redis.Redis, key: str) -> Iterator[None]:
    """Somebody's mistake, that is mended afterwards."""
    client.rename(key, "aside")
    client.set(key, "not a hash")
    try:
        yield
    finally:
        client.rename("aside", key)


@contextlib.contextmanager
def standstill(server: Server) -> Iterator[None]:
    """SIGSTOP: the server answers nobody, and closes nothing."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


@contextlib.contextmanager
def busy(server: Server, *before: Sequence[str]) -> Iterator[None]:
    """A script of another program that does not end: the server answers BUSY to each command.

    Arguments:
        before: commands that the server carries out right before it.
    """
    control, other = server.client(), server.client(socket_timeout=None)
    control.config_set("lua-time-limit", 50)  # busy-reply-threshold, for Redis 6.2, too

    def run() -> None:
        pipeline = other.pipeline(transaction=False)
        for words in (*before, ("EVAL", "while true do end", "0")):
            pipeline.execute_command(*words)
        pipeline.execute(raise_on_error=False)  # the script is killed

    def answers_busy() -> bool:
        try:
            control.ping()
        except redis.ResponseError as exc:
            return str(exc).startswith("BUSY")
        return False

    script = threading.Thread(target=run)
    script.start()
    eventually(answers_busy)
    try:
        yield
    finally:
        control.script_kill()
        script.join()
        control.config_set("lua-time-limit", 5000)


def unheard(server: Server, call: Callable[[], object]) -> None:
    """Make a call whose reply does not come in time; the server carries it out later."""
    with standstill(server), pytest.raises(redis.TimeoutError):
        call()


def command(name: str) -> Callable[[Words], bool]:
    """For `FaultProxy.cut_at`: a command by its name."""
    return lambda words: words[0].upper() == name.encode()


def script(*sources: str) -> Callable[[Words], bool]:
    """For `FaultProxy.cut_at`: a script, sent whole with any first line, or by hash."""
    flags = ("allow-oom", "no-writes")
    headers = ("", PLAIN_LINE, *(FLAGS_LINE.format(flags=flag) for flag in flags))
    texts = {(h + text).encode() for h in headers for text in sources}
    known = texts | {sha1(text).hexdigest().encode() for text in texts}
    return lambda words: words[0].upper() in (b"EVAL", b"EVALSHA") and words[1] in known
