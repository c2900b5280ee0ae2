"""Loads ``store/lua/*.lua`` and runs them on the server, by digest (EVALSHA).

Each class of ``store/`` that reads or moves jobs runs its scripts by ``Scripts``, in every process
that uses a database (worker, publisher, beat, command, console) and in any of its threads.
``PendingLeases`` (``owner/in_flight``) encodes its commands by ``Scripts.command``, and sends them
by a ``Pipeline`` of its own. A server that does not know a digest gets the whole text: ``Pipeline``
sends it.

Each script is atomic: the header of each file (*Crash*) says where its jobs are at any moment. If
the process dies during a round trip of several calls, the server has carried out the first ones, or
all, or none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from redis import Redis

from ...model.job import digest
from ...model.lazy import lazy_property
from .call import Call
from .pipeline import Command, Pipeline, no_report
from .server import first_line

LUA = Path(__file__).parents[1] / "lua"

#: Scripts that only read. With the flag "no-writes" they also run on a server that accepts no
#: writes (a replica). The others have "allow-oom" (``server.FLAGS_LINE``): acks and claims have to
#: run on a full server.
READ_SCRIPTS = {"counters", "find", "in_flight_counts", "pages", "payloads"}


class Scripts:
    """The scripts of one database, run by one client.

    Arguments:
        never: a key that never exists. Each call of a script names it last. While a cluster moves
            the slot of the keys to another node, the old node refuses a script that names a key
            which it does not have. Because of ``never`` it refuses each whole script; otherwise a
            script could fail after some of its writes. The Lua text that is sent removes the key
            from ``KEYS`` before the script reads them.
    """

    def __init__(self, client: Redis, never: str) -> None:
        self.client = client
        self._never = never
        self._digest = cache(lambda name: digest(self._source(name).encode()))

    def run(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Any],
        whole: bool = False,
        is_plain: bool = False,
    ) -> Any:
        """Run one script, or one plain command; return its reply. The arguments are those of
        ``Call``.

        Raises:
            RedisError, OSError: the server refused it; or no reply came, and it may have been
                carried out.
        """
        return self.run_all([Call(name, keys, args, whole, is_plain)])[0]

    def run_all(self, calls: Sequence[Call], *, errors: bool = False) -> list[Any]:
        """Run several calls in one round trip, in their order; return their replies. They are no
        transaction: other clients' commands may run in between, and if the server refuses one call,
        the next ones still run.

        Arguments:
            errors: return the errors that the server answers as replies, instead of raising the
                first.
        """
        replies: list[Any] = []
        pipeline = Pipeline(self)
        try:
            pipeline.send([Command(call, replies.append, no_report) for call in calls])
        finally:
            pipeline.release()
        for reply in replies:
            if isinstance(reply, Exception) and not errors:
                raise reply
        return replies

    def command(self, call: Call) -> list[Any]:
        """Return the words of the Redis command that carries a call out."""
        name, keys, args, whole, is_plain = call
        if is_plain:
            return [name, *keys, *args]
        verb = ["EVAL", self._source(name)] if whole else ["EVALSHA", self._digest(name)]
        return [*verb, len(keys) + 1, *keys, self._never, *args]

    def _source(self, name: str) -> str:
        flags = "no-writes" if name in READ_SCRIPTS else "allow-oom"
        return self.first_line.format(flags=flags) + source(name)

    @lazy_property
    def first_line(self) -> str:
        return first_line(self.client)


def read_all() -> None:
    """Read all scripts into memory. A worker calls it when it starts, before its pool forks. If the
    package is upgraded on disk while the worker runs, a script that is read later would be that of
    another version, with other arguments."""
    for path in LUA.glob("*.lua"):
        source(path.stem)


@cache
def source(name: str) -> str:
    """Return the text of a script, with the shared functions in front of it if it calls one. The
    line of flags (``first_line``) is not in it: ``Scripts`` puts that in front."""
    text, (shared, called) = (LUA / f"{name}.lua").read_text(), _shared()
    before = shared if called.search(text) else ""
    return "KEYS[#KEYS] = nil\n" + before + text  # scripts do not see the key that never exists


@cache
def _shared() -> tuple[str, re.Pattern[str]]:
    """Return the functions that several scripts share (``shared.lua``), and a pattern that finds a
    call of one of them."""
    text = (LUA / "shared.lua").read_text()
    calls = "|".join(re.findall(r"^local function (\w+)", text, re.MULTILINE))
    return text, re.compile(rf"\b({calls})\(")
