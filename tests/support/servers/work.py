"""What a server was asked to do, command by command, as its own slow log has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import redis

#: Commands that take as long as there are keys, or members.
WITHOUT_END = {"keys", "scan", "hgetall", "hkeys", "hvals", "hscan", "smembers", "flushdb"}

#: How the slow log cuts what is long: "... (71 more arguments)".
MORE = re.compile(rb"\.\.\. \((\d+) more arguments\)")


class Command(NamedTuple):
    """One command of a client."""

    name: str
    arguments: list[bytes]
    micros: int

    @property
    def number(self) -> int:
        """How many arguments it had; the log keeps the first few."""
        last = MORE.fullmatch(self.arguments[-1]) if self.arguments else None
        return len(self.arguments) - 1 + int(last[1]) if last else len(self.arguments)


class Work:
    """Commands in the order of their ends: those within a script come before the script."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def longest(self, count: int = 1) -> list[Command]:
        return sorted(self.commands, key=lambda command: -command.micros)[:count]


@contextmanager
def noted(client: redis.Redis, least: int = 0) -> Iterator[Work]:
    """What the server does while the block runs. The server must be nobody else's.

    Arguments:
        least: us from which on a command is noted. With 0 it is all of them, and what a script
            does takes several times as long.
    """
    work = Work()
    client.config_set("slowlog-max-len", 200_000)
    client.config_set("slowlog-log-slower-than", least)
    client.slowlog_reset()
    yield work
    # In two words: for "SLOWLOG GET" the client would join what we want apart.
    entries: Any = client.execute_command("SLOWLOG", "GET", 200_000)
    client.config_set("slowlog-log-slower-than", 10_000)
    for _, _, micros, words, *_ in reversed(entries):
        name = words[0].decode().lower()
        if name not in ("slowlog", "config"):
            work.commands.append(Command(name, words[1:], micros))
