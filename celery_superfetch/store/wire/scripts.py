"""Loads ``store/lua/*.lua`` and runs them by digest; a script lost by the server is sent again."""

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
from .pipeline import Command, Pipeline
from .server import first_line

LUA = Path(__file__).parents[1] / "lua"

#: Scripts that run where the server takes no write, on a replica, say.
READS = {"counters", "holdings", "pages", "payloads"}


class Scripts:
    """The scripts, run through one plain client; each call declares the key that never exists."""

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
        """Run one script (a ``Call``) and return its reply; RedisError where there is none."""
        return self.run_all([Call(name, keys, args, whole, is_plain)])[0]

    def run_all(self, calls: Sequence[Call], *, errors: bool = False) -> list[Any]:
        """Run several in one round trip, in order, as no transaction; ``errors``: are returned."""
        replies: list[Any] = []
        pipeline = Pipeline(self)
        try:
            # A lost reply raises: nothing else is to be done about it here.
            pipeline.send([Command(call, replies.append, int) for call in calls])
        finally:
            pipeline.release()
        for reply in replies:
            if isinstance(reply, Exception) and not errors:
                raise reply
        return replies

    def command(self, call: Call) -> list[Any]:
        name, keys, args, whole, is_plain = call
        if is_plain:
            return [name, *keys, *args]
        verb = ["EVAL", self._source(name)] if whole else ["EVALSHA", self._digest(name)]
        return [*verb, len(keys) + 1, *keys, self._never, *args]

    def _source(self, name: str) -> str:
        flags = "no-writes" if name in READS else "allow-oom"
        return self.first_line.format(flags=flags) + source(name)

    @lazy_property
    def first_line(self) -> str:
        return first_line(self.client)


def read_all() -> None:
    """Read them while they are those of this version: where the package is upgraded beneath a
    worker, it and its pool would go on by scripts that mean their arguments otherwise."""
    for path in LUA.glob("*.lua"):
        source(path.stem)


@cache
def source(name: str) -> str:
    text, (shared, called) = (LUA / f"{name}.lua").read_text(), _shared()
    before = shared if called.search(text) else ""
    return "KEYS[#KEYS] = nil\n" + before + text  # scripts do not see the key that never exists


@cache
def _shared() -> tuple[str, re.Pattern[str]]:
    """What several scripts call, and a pattern of its calls."""
    text = (LUA / "shared.lua").read_text()
    calls = "|".join(re.findall(r"^local function (\w+)", text, re.MULTILINE))
    return text, re.compile(rf"\b({calls})\(")
