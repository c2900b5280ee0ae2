"""Finds keys by SCAN: of owners that are not in the registry, and of jobs that are left.

Commands call it, in their own process, and no worker does: `superfetch reap --full` and
`superfetch drain` look for unregistered owners (``owners``), `drain` counts what is left
(``left``), and `superfetch doctor` looks for owners without a registration (``holders``) and for
queues that no worker consumes (``bound``).

It writes nothing, so that a death of the process leaves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .database import Structure
from .private_lists import claims_of

SCAN_COUNT = 1000  # keys asked for in one command
SCAN_STEPS = 100  # commands after which ``holders`` and ``bound`` stop
#: Kinds of keys that hold jobs in flight, parked jobs or suspects -> the command that counts these
#: (of HKEYS, the claim ids among the fields).
JOBS = {"private:": "HKEYS", "landing:": "LLEN", "parked:": "ZCARD", "probation:": "LLEN"}
DEAD = {"dead", "dead:"}  # kinds of keys of the dead set


class Keyspace(Structure):
    """Finder of keys. ``owners`` and ``left`` walk through the whole database, ``holders`` and
    ``bound`` through a hundred steps at most. All raise if the ACL forbids SCAN."""

    def owners(self) -> dict[str, set[str]]:
        """Return the owners that have an owner record or jobs in flight, whether or not they are
        listed in ``superfetch:owners``: owner -> the queue lists of its landing lists."""
        owners: dict[str, set[str]] = {}
        for kind, type in ("private:", "HASH"), ("landing:", "LIST"), ("owner:", "HASH"):
            for key in self._scan(kind, type):
                _, owner, queue_list = self.keys.parse(key)
                owners.setdefault(owner, set()).update({queue_list} - {""})
        return owners

    def holders(self) -> set[str]:
        """Return owners with jobs in flight: those that a hundred steps of SCAN find."""
        parsed = map(self.keys.parse, self._look(self.keys.pattern()))
        return {owner for kind, owner, _ in parsed if kind in ("private:", "landing:")}

    def bound(self, separator: str) -> set[str]:
        """Return the queues that kombu's bindings name, except the reply queues of remote control:
        those that a hundred steps of SCAN find. ``separator``: kombu's, between the parts of a
        binding. A binding that cannot be read is left out."""
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
            # A private list is named by its owner alone: with a third part it is another key.
            if kind in JOBS and not (kind == "private:" and queue_list)
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
