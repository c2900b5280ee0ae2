"""All keys of this package, found by SCAN. `superfetch reap --full` and `drain` look for unknown
owners here, `drain` for jobs that are left, and the console for both; nothing here writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .database import Structure
from .private_lists import claims_of

SCAN_COUNT = 1000  # keys asked for in one command
SCAN_STEPS = 100  # of a method that stops early
#: Kinds of keys that hold jobs in flight, parked or on probation, with what counts these, and those
#: of the dead set.
JOBS = {"private:": "HKEYS", "landing:": "LLEN", "parked:": "ZCARD", "probation:": "LLEN"}
DEAD = {"dead", "dead:"}


class Keyspace(Structure):
    """Each method walks through the whole database, and raises where SCAN is forbidden."""

    def owners(self) -> dict[str, set[str]]:
        """Return each owner with an owner record or jobs in flight, registered or not -> the queue
        lists of its landing lists."""
        owners: dict[str, set[str]] = {}
        for kind, type in ("private:", "HASH"), ("landing:", "LIST"), ("owner:", "HASH"):
            for key in self._scan(kind, type):
                _, owner, queue_list = self.keys.parse(key)
                owners.setdefault(owner, set()).update({queue_list} - {""})
        return owners

    def holders(self) -> set[str]:
        """Return the owners with jobs in flight, as far as a hundred steps of SCAN find them."""
        parsed = map(self.keys.parse, self._look(self.keys.pattern()))
        return {owner for kind, owner, _ in parsed if kind in ("private:", "landing:")}

    def bound(self, separator: str) -> set[str]:
        """Return the queues that kombu's bindings name, except those of replies, as far as a
        hundred steps of SCAN find them."""
        found = self._look(self.keys.pattern(family="_kombu.binding."))
        names = [("SMEMBERS", key) for key in found if not key.endswith(b".pidbox")]
        tables = self._at_once(names, errors=True)
        rows = (row for table in tables if not isinstance(table, Exception) for row in table)
        return {row.decode(errors="replace").rpartition(separator)[2] for row in rows}

    def left(self) -> tuple[Counter[str], int]:
        """Return kind of key -> jobs in flight, parked or on probation; and the number of keys that
        hold no job."""
        parsed = [(key, *self.keys.parse(key)) for key in self._scan()]
        holding = [
            (kind, key)
            for key, kind, _, queue_list in parsed
            if kind in JOBS and not (kind == "private:" and queue_list)  # no HASH of claims
        ]
        sizes = self._at_once(((JOBS[kind], key) for kind, key in holding), errors=True)
        jobs: Counter[str] = Counter()
        others = sum(kind not in JOBS.keys() | DEAD for _, kind, *_ in parsed)
        for (kind, _), size in zip(holding, sizes, strict=True):
            if isinstance(size, Exception):  # a key of another type, written by hand: no jobs
                others += 1
            else:
                jobs[kind] += size if isinstance(size, int) else len(claims_of(size))
        return jobs, others

    def _look(self, pattern: str) -> Iterator[bytes]:
        cursor = 0
        for _ in range(SCAN_STEPS):
            cursor, rows = self.client.scan(cursor, pattern, SCAN_COUNT)
            yield from rows
            if not cursor:
                return

    def _scan(self, kind: str = "", type: str | None = None) -> Iterator[bytes]:
        return self.client.scan_iter(self.keys.pattern(kind), SCAN_COUNT, type)
