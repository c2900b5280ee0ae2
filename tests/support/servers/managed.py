"""A plain server that looks like a rented one: a proxy before it refuses and changes commands."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from redis.crc import key_slot

from support.servers.proxy import FaultProxy, Words, _Line
from support.servers.server import Option

#: Commands with two keys, and where the keys of a script begin.
TWO_KEYS = {b"BLMOVE", b"LMOVE", b"RPOPLPUSH", b"BRPOPLPUSH"}
SCRIPTS = {b"EVAL", b"EVALSHA"}
ANSWER_ERROR = b"return redis.error_reply(ARGV[1])"


@dataclass(frozen=True)
class Manners:
    """How a service differs from a plain server."""

    #: Directives of the server behind it.
    options: Mapping[str, Option] = field(default_factory=dict)
    #: Commands, and sub-commands after ``|``, that it does not know.
    unknown: tuple[str, ...] = ()
    #: What it says then, with the command for ``%s``; empty: as Redis does.
    refusal: str = ""
    tls: bool = False
    databases: bool = True  # more than number 0
    redirect: bool = True  # CLIENT TRACKING with REDIRECT
    #: Connection ids are the proxy's own.
    own_ids: bool = False
    #: So many proxies take turns; each has given the same ids to other connections.
    proxies: int = 1
    unblocks: bool = True  # False: CLIENT UNBLOCK finds nobody, since another proxy has the id
    slots: bool = False  # it is a cluster that does not say so
    flags_line: bool = True  # False: a script that begins with "#!lua" does not compile
    #: Fields of INFO that it has otherwise; None: has not.
    info: Mapping[str, str | None] = field(default_factory=dict)


def packed(*words: bytes | str | int) -> bytes:
    """Return a command as it is sent."""
    raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in raw)


class ManagedProxy(FaultProxy):
    """Passes on to the server at ``port`` what a service with these manners would carry out.

    What it refuses it replaces by what has the server answer with the service's error: replies stay
    in their order, also in a pipeline.
    """

    def __init__(
        self, port: int, manners: Manners, *, tls: ssl.SSLContext | None = None, first_id: int = 3
    ) -> None:
        super().__init__(port, tls)
        self.manners = manners
        self._ids = [itertools.count(first_id) for _ in range(manners.proxies)]
        self._turns = itertools.cycle(range(manners.proxies))
        #: How often CLIENT UNBLOCK found nobody.
        self.unblocked_nobody = 0
        #: Ids of connections that were cut by ``CLIENT KILL``, of this proxy's own.
        self.killed: list[int] = []

    async def opened(self, line: _Line, source: asyncio.StreamReader) -> None:
        line.proxy = next(self._turns)
        line.id = next(self._ids[line.proxy])
        if self.manners.own_ids:
            assert line.server is not None
            line.server.write(packed("CLIENT", "ID"))
            line.server_id = int((await source.readline())[1:])

    async def sent(self, line: _Line, raw: bytes, words: Words) -> bytes:
        if not words:
            return raw
        verb = words[0].upper()
        if verb == b"MULTI":
            line.in_transaction = True
        elif verb in (b"EXEC", b"DISCARD"):
            line.in_transaction = False
        if (why := self._refusal(verb, words)) is not None:
            # Within a transaction only a command that the server itself does not know is refused
            # as it is queued.
            unknown = packed(b"NOT-HERE-" + verb)
            return unknown if line.in_transaction else packed("EVAL", ANSWER_ERROR, 0, why)
        if verb == b"CLIENT" and self.manners.own_ids and len(words) > 1:
            return await self._by_own_ids(line, raw, words)
        if verb == b"INFO" and self.manners.info:
            return self._info(words)
        return raw

    def _refusal(self, verb: bytes, words: Words) -> str | None:
        manners, name = self.manners, verb.decode(errors="replace")
        second = words[1].upper() if len(words) > 1 else b""
        sub = f"{name}|{second.decode(errors='replace')}"
        if name in manners.unknown or sub in manners.unknown:
            if manners.refusal:
                return manners.refusal % name.lower()
            if name in manners.unknown:
                return f"ERR unknown command '{name}', with args beginning with: "
            return f"ERR unknown subcommand '{second.decode()}'. Try {name} HELP."
        if verb == b"SELECT" and not manners.databases and second != b"0":
            return "ERR DB index is out of range"
        tracks = verb == b"CLIENT" and second == b"TRACKING"
        if tracks and not manners.redirect and b"REDIRECT" in map(bytes.upper, words):
            return "ERR REDIRECT option is not supported"
        if verb == b"EVAL" and not manners.flags_line and second.startswith(b"#!"):
            return (
                "ERR Error compiling script (new function): user_script:1: unexpected symbol "
                "near '#'"
            )
        if manners.slots and len({key_slot(key) for key in _keys(verb, words)}) > 1:
            return "CROSSSLOT Keys in request don't hash to the same slot"
        return None

    async def _by_own_ids(self, line: _Line, raw: bytes, words: Words) -> bytes:
        """Answer what asks for a connection's id, or names one, by this proxy's ids."""
        sub = words[1].upper()
        by_id = {other.id: other for other in self._lines if other.proxy == line.proxy}
        if sub == b"ID":
            return packed("EVAL", "return tonumber(ARGV[1])", 0, line.id)
        if sub == b"LIST":
            asked = {int(word) for word in words[3:]} if len(words) > 3 else set(by_id)
            return packed("EVAL", "return ARGV[1]", 0, await self._listed(by_id, asked))
        if sub in (b"KILL", b"UNBLOCK"):
            known = int(words[3] if sub == b"KILL" else words[2])
            other = by_id.get(known)
            if other is None or (sub == b"UNBLOCK" and not self.manners.unblocks):
                self.unblocked_nobody += sub == b"UNBLOCK"
                return packed("EVAL", "return 0", 0)
            if sub == b"KILL":
                self.killed.append(known)
                return packed("CLIENT", "KILL", "ID", other.server_id)
            return packed("CLIENT", "UNBLOCK", other.server_id, *words[3:])
        return raw

    async def _listed(self, by_id: Mapping[int, _Line], asked: set[int]) -> bytes:
        """Return the server's rows of connections of this proxy, with its ids."""
        async with AsyncExitStack() as stack:
            reader, writer = await asyncio.open_connection(*self.upstream)
            stack.callback(writer.close)
            writer.write(packed("CLIENT", "LIST"))
            size = int((await reader.readline())[1:])
            rows = (await reader.readexactly(size)).splitlines()
        ours = {other.server_id: known for known, other in by_id.items() if known in asked}
        found = []
        for row in rows:
            first, _, rest = row.partition(b" ")
            if (known := ours.get(int(first[3:]))) is not None:
                found.append(b"id=%d %s\n" % (known, rest))
        return b"".join(found)

    def _info(self, words: Words) -> bytes:
        change = (
            "local text = redis.call('INFO', unpack(ARGV, #KEYS + 1)) "
            "for i = 1, #KEYS do local name, value = string.match(KEYS[i], '^([^=]*)=?(.*)$') "
            "local line = '\\n' .. name .. ':[^\\r\\n]*\\r' "
            "if value == '' then text = string.gsub(text, line, '') "
            "else text = string.gsub(text, line, '\\n' .. name .. ':' .. value .. '\\r') end end "
            "return text"
        )
        fields = [f"{name}={value or ''}" for name, value in self.manners.info.items()]
        return packed("EVAL", change, len(fields), *fields, *(words[1:] or [b"default"]))


def _keys(verb: bytes, words: Words) -> list[bytes]:
    if verb in SCRIPTS:
        return words[3 : 3 + int(words[2])]
    return words[1:3] if verb in TWO_KEYS else []
