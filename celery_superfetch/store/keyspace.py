"""Finds keys by SCAN: of owners (processes that claim jobs) that are not in the registry, and of
the jobs that are still in Redis after a rollback.

`superfetch reap --full` and `superfetch rollback` look for all unregistered owners (``owners``);
`rollback` counts the jobs that it could not move (``left``). `superfetch doctor` makes a limited
search for unregistered owners with jobs (``holders``) and for queues that no worker consumes
(``bound_lists``). A reaper's pass, in a worker or in a command, calls ``bound_lists`` when it does
its house-keeping.

It writes nothing: if the process dies, nothing has to be repaired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from .database import Structure, none_if_wrong_type
from .private_lists import claims_of

SCAN_COUNT = 1000  # keys asked for in one command
SCAN_STEPS = 100  # SCAN commands (steps) after which ``holders`` and ``bound`` stop
#: Kind of keys (``Keys.parse``) that hold jobs in flight, parked jobs or suspects -> the command
#: that counts the jobs. HKEYS returns all fields of a private list; its claim ids are the jobs.
COUNT_BY_KIND = {"private:": "HKEYS", "landing:": "LLEN", "parked:": "ZCARD", "probation:": "LLEN"}
DEAD_KINDS = {
    "dead",
    "dead:",
}  # kinds of keys of the dead set: ``superfetch:dead``, and with more parts


class Keyspace(Structure):
    """Finder of keys. ``owners`` and ``left`` walk through the whole database, ``holders`` and
    ``bound`` through ``SCAN_STEPS`` steps at most. All raise if the ACL forbids SCAN."""

    def owners(self) -> dict[str, set[str]]:
        """Return the owners that have an owner record or jobs in flight, whether or not they are
        listed in ``superfetch:owners``: owner -> the queue lists of its landing lists."""
        owners: dict[str, set[str]] = {}
        for kind, type in ("private:", "HASH"), ("landing:", "LIST"), ("owner:", "HASH"):
            for key in self._scan_all(kind, type):
                _, owner, queue_list = self.keys.parse(key)
                owners.setdefault(owner, set()).update({queue_list} - {""})
        return owners

    def holders(self) -> set[str]:
        """Return owners with jobs in flight: those that a hundred steps of SCAN find."""
        parsed = map(self.keys.parse, self._find(self.keys.pattern()))
        return {owner for kind, owner, _ in parsed if kind in ("private:", "landing:")}

    def bound(self) -> set[str]:
        """Return the queues that kombu's bindings name, except the reply queues of remote control:
        those that a hundred steps of SCAN find. A binding that cannot be read is left out."""
        found = self._find(self.keys.pattern(family="_kombu.binding."))
        names = [("SMEMBERS", key) for key in found if not key.endswith(b".pidbox")]
        tables = self._at_once(names, errors=True)
        rows = (row for table in tables if not isinstance(table, Exception) for row in table)
        return {*filter(None, map(self._bound_queue, rows))}

    def _bound_queue(self, row: bytes) -> str:
        """Return the queue of a binding: kombu joins a routing key, a pattern and the queue by its
        ``sep``. If the queue's name contains the separator, too, the pattern has to be empty, as it
        is for all exchanges but topics; otherwise return nothing."""
        separator, text = self.config.sep, row.decode(errors="replace")
        parts = text.split(separator, 3)
        return parts[2] if len(parts) == 3 else text.partition(2 * separator)[2]

    def bound_lists(self, of_app: Iterable[str]) -> set[str]:
        """Return the queue lists of the queues that ``bound`` finds, one for each priority step.
        ``of_app``: the queue lists of the app, which show its steps."""
        names = self.database.list_names
        steps = {names.split(queue_list)[1] for queue_list in of_app}
        return {names.of(queue, step) for queue in self.bound() for step in steps}

    def left(self) -> tuple[Counter[str], int]:
        """Return kind of key -> number of jobs in flight, parked or on probation; and the number of
        the package's other keys, without those of the dead set. SCAN may return a key twice; then
        its jobs are counted twice."""
        parsed = [(key, *self.keys.parse(key)) for key in self._scan_all()]
        holding = [
            (kind, key)
            for key, kind, _, queue_list in parsed
            # A private list is named by its owner alone: with a third part it is another key.
            if kind in COUNT_BY_KIND and not (kind == "private:" and queue_list)
        ]
        commands = [(COUNT_BY_KIND[kind], key) for kind, key in holding]
        sizes = map(none_if_wrong_type, self._at_once(commands, errors=True))
        jobs: Counter[str] = Counter()
        others = sum(kind not in COUNT_BY_KIND.keys() | DEAD_KINDS for _, kind, *_ in parsed)
        for (kind, _), size in zip(holding, sizes, strict=True):
            if size is None:  # a key of another type, written by hand: no jobs
                others += 1
            else:
                jobs[kind] += size if isinstance(size, int) else len(claims_of(size))
        return jobs, others

    def _find(self, pattern: str) -> Iterator[bytes]:
        """Yield the keys that ``SCAN_STEPS`` steps find."""
        cursor = 0
        for _ in range(SCAN_STEPS):
            cursor, rows = self.client.scan(cursor, pattern, SCAN_COUNT)
            yield from rows
            if not cursor:
                return

    def _scan_all(self, kind: str = "", type: str | None = None) -> Iterator[bytes]:
        """Yield all keys of a kind."""
        return self.client.scan_iter(self.keys.pattern(kind), SCAN_COUNT, type)
