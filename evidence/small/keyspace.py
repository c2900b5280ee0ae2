"""Keyspaces by number, and what a script of the package changes in one, on a real server.

A script depends only on the keys, its arguments and the clock. So each call is made once for each
keyspace: the keyspace is written to the server, the call is made, all keys are read, and the result
is remembered. Times are dropped, with one exception: whether a heartbeat came after the reaper had
judged its owner. No other decision in this world depends on them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import redis

from celery_superfetch.model.config import Config
from celery_superfetch.model.strikes import Limits
from celery_superfetch.store.database import Database
from celery_superfetch.store.owner_registry import OwnerRegistry
from celery_superfetch.store.parked_jobs import ParkedJobs
from celery_superfetch.store.private_lists import PrivateLists
from celery_superfetch.store.redis.call import Call
from celery_superfetch.store.redis.pipeline import asked
from celery_superfetch.store.strike_counters import StrikeCounters

from .changed import ChangedScripts, Changes
from .contents import NOTES, Contents, Rows, contents_of

PUT = """
redis.call('FLUSHDB')
for _, command in ipairs(cjson.decode(ARGV[1])) do redis.call(unpack(command)) end
"""
DUMP = """
local reads = {list = {'LRANGE', 0, -1}, set = {'SMEMBERS'}, hash = {'HGETALL'}, string = {'GET'},
  zset = {'ZRANGE', 0, -1, 'WITHSCORES'}}
local rows = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  rows[i] = {key, kind, redis.call(reads[kind][1], key, unpack(reads[kind], 2))}
end
return rows
"""
#: Kind of key -> the command that writes it.
WRITES = {"list": "RPUSH", "set": "SADD", "hash": "HSET", "string": "SET", "zset": "ZADD"}

#: Fields of a job's history on which no decision of this world depends -> one value for all.
CONSTANT_FIELDS = {"history": "[]"}
CONSTANT_FIELDS |= dict.fromkeys(("requeues", "token", "first_claim", "stops"), "1")
CONSTANT_FIELDS |= dict.fromkeys(("deaths", "alongside"), "1")


class ScriptError(Exception):
    """A script of the package failed."""


class NumberedClaims(PrivateLists):
    """Private lists whose claims get the numbers that the world chooses. The package takes them
    from the time, which would make each keyspace a new one."""

    number = 1

    def _numbers(self, count: int) -> int:
        return self.number


class Keyspaces:
    """All keyspaces that were met, and the package's structures, whose scripts run on one of them.

    Arguments:
        changes: script -> what is changed in it.
        options: of the package's ``Config``.
    """

    def __init__(self, client: redis.Redis, changes: Mapping[str, Changes], **options: Any) -> None:
        self.database = Database(client, Config(app_name="shop", **options))
        self.keys = self.database.keys
        self._scripts = ChangedScripts(client, self.keys.never, changes)
        self.database.__dict__["scripts"] = self
        self.registry, self.parked = OwnerRegistry(self.database), ParkedJobs(self.database)
        self.lists = NumberedClaims(self.database)
        self.strike_counters = StrikeCounters(self.database)
        self.limits = Limits.of(self.database.config)
        self._connection = client.connection_pool.get_connection()
        self._put, self._dump = (client.script_load(text) for text in (PUT, DUMP))
        self._numbers: dict[Rows, int] = {}
        self.rows: list[Rows] = []  # of each keyspace, by its number
        self.contents: list[Contents] = []  # of each keyspace, by its number
        self._results: dict[Any, tuple[int, Any]] = {}
        self.current = 0  # the keyspace on which scripts run
        self.new_score = 1  # what a heartbeat writes
        self.scripts_run: list[str] = []

    # -- the interface of ``Scripts``, for the structures

    def run(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Any],
        whole: bool = False,
        is_plain: bool = False,
    ) -> Any:
        self.scripts_run.append(name)
        return self._execute(self._scripts.command(Call(name, keys, args, is_plain=is_plain)))

    def run_all(self, calls: Sequence[Call], *, errors: bool = False) -> list[Any]:
        return [self.run(*call) for call in calls]

    def command(self, *command: Any) -> Any:
        """Run one plain command on the current keyspace."""
        return self._execute(command)

    def _execute(self, command: Sequence[Any]) -> Any:
        put = "EVALSHA", self._put, 0, self._commands(self.current)
        written, reply, rows = asked(self._connection, put, command, ("EVALSHA", self._dump, 0))
        for answer in (written, reply, rows):
            if isinstance(answer, Exception):
                raise ScriptError(str(answer))
        self.current = self.number(self._comparable(rows))
        return reply

    def call(self, at: int, act: Callable[..., Any], *params: Any) -> tuple[int, Any]:
        """Make a call of ``calls.py`` on the keyspace ``at``; return the keyspace after it, and
        what the call returned."""
        key = at, act.__name__, self.lists.number, self.new_score, *params
        if key not in self._results:
            self.current = at
            reply = act(self, *params)
            self._results[key] = self.current, reply
        return self._results[key]

    # -- keyspaces

    def number(self, rows: Rows) -> int:
        """Return the number of a keyspace; a new one gets the next number."""
        if rows not in self._numbers:
            self._numbers[rows] = len(self.rows)
            self.rows.append(rows)
            self.contents.append(contents_of(self.keys, rows))
        return self._numbers[rows]

    @cache  # noqa: B019 - the object lives as long as the search
    def _commands(self, at: int) -> str:
        commands = []
        for key, kind, values in self.rows[at]:
            if kind == "zset":
                values = tuple(
                    v for pair in zip(values[1::2], values[::2], strict=True) for v in pair
                )
            commands.append([WRITES[kind], key, *values])
        return json.dumps(commands)

    def _comparable(self, rows: Sequence[Any]) -> Rows:
        """Return the keys without what makes no difference in this world: times, statistics, and
        the details of histories and of records."""
        keys, compared = self.keys, []
        dropped = (keys.stats, keys.deaths, keys.minutes)  # the last are the counts of charts
        for raw_key, raw_kind, raw_values in rows:
            key, kind = raw_key.decode(), raw_kind.decode()
            if key.startswith(dropped):
                continue
            raw = [raw_values] if kind == "string" else raw_values
            values = [value.decode("latin-1") for value in raw]
            if kind == "hash":
                pairs = sorted(zip(values[::2], values[1::2], strict=True))
                values = [v for name, text in pairs for v in self._field(key, name, text)]
            elif kind == "zset":
                pairs = sorted(zip(values[::2], values[1::2], strict=True))
                values = [
                    v
                    for at, (name, text) in enumerate(pairs)
                    for v in self._scored(key, name, text, at)
                ]
            elif kind == "set":
                values.sort()
            compared.append((key, kind, tuple(values)))
        return tuple(sorted(compared))

    def _field(self, key: str, name: str, text: str) -> tuple[str, ...]:
        of_reaped = "state", "state_before_reap", "ran_at_reap"
        if key.startswith(self.keys.owner_record("")) and name not in of_reaped:
            return ()
        if key.startswith(self.keys.history("")):
            text = CONSTANT_FIELDS.get(name, text)
        if key == self.keys.dead_jobs:
            record = json.loads(text)
            text = json.dumps({"payload": record["payload"], "strikes": record["strikes"]})
        return name, text

    def _scored(self, key: str, name: str, text: str, at: int) -> tuple[str, str]:
        if key == self.keys.owners:
            return name, text if len(text) == 1 else str(self.new_score)
        if key.startswith(self.keys.parked_of("")):
            # Two jobs of the same bytes are two members. What else is in a member makes no
            # difference.
            return f"{at}\n" + name.partition("\n")[2], "1"
        return name, "1"

    @cache  # noqa: B019 - as above
    def renamed(self, at: int, owners: tuple[tuple[str, str], ...], ids: Any, score: Any) -> int:
        """Return the number of a keyspace with other names of owners ('' removes one) and of
        claims, and with other scores."""
        names, numbers, scores = dict(owners), dict(ids), dict(score)
        rows = []
        for key, kind, values in self.rows[at]:
            for old, new in owners:
                if old in key:
                    key = key.replace(old, new) if new else ""
                    if numbers and kind == "hash" and key.startswith(self.keys.private("")):
                        values = self._renumbered(values, numbers, old)
                    break
            if key in (self.keys.owners, self.keys.reaped):
                pairs = zip(values[::2], values[1::2], strict=True)
                rest = sorted(
                    (
                        names.get(name, name),
                        scores.get(text, text) if key == self.keys.owners else text,
                    )
                    for name, text in pairs
                    if names.get(name, name)
                )
                values = tuple(v for pair in rest for v in pair)
            if key.startswith(self.keys.host("")):
                values = tuple(sorted(filter(None, (names.get(one, one) for one in values))))
            if key and values:
                rows.append((key, kind, values))
        return self.number(tuple(sorted(rows)))

    def _renumbered(
        self, values: tuple[str, ...], numbers: Mapping[Any, str], owner: str
    ) -> tuple[str, ...]:
        changed = []
        for name, text in zip(values[::2], values[1::2], strict=True):
            note = name[: name.startswith(NOTES)]
            id = name.removeprefix(note)
            changed.append((note + numbers.get((owner, id), id), text))
        return tuple(v for pair in sorted(changed) for v in pair)
