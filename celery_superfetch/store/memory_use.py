"""Measures how many bytes of the server's memory the keys of each kind take (MEMORY USAGE).

The console calls it for the view of the server (``console/memory.py``). It measures a limited
number of keys of each kind, by a sample of the items of each. It writes nothing: if the process
dies, nothing has to be repaired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .database import Structure

KEYS_MEASURED = 200  # keys of each kind that are measured at most
ITEMS_SAMPLED = 20  # items of one key from which the server extrapolates its size


class KindUse(NamedTuple):
    """The memory of the keys of one kind."""

    bytes: int | None  # of the measured keys together; None: the server refused all of them
    largest: str  # queue list or owner of the largest measured key; empty if it has neither
    largest_bytes: int  # 0: no key has a size
    measured_count: int  # keys whose size the server returned, or that do not exist
    key_count: int


class MemoryUse(Structure):
    """Reader of the memory that this package's keys and the queues take."""

    def by_kind(
        self,
        *,
        waiting: Sequence[str],
        scheduled: Sequence[str],
        probation: Sequence[str],
        owners: Sequence[str],
    ) -> dict[str, KindUse] | None:
        """Return kind -> its memory; None if the server refuses MEMORY USAGE.

        Arguments:
            waiting, scheduled, probation: queue lists that may have such jobs, those with the most
                first.
            owners: all that may have jobs, reaped ones as well, those with the most first.
        """
        keys = self.keys
        names_by_kind: Mapping[str, Sequence[tuple[str, str]]] = {
            "waiting": [(name, keys.queue(name)) for name in waiting],
            "in flight": [(owner, keys.private(owner)) for owner in owners],
            "scheduled": [(name, keys.parked_of(name)) for name in scheduled],
            "probation": [(name, keys.probation(name)) for name in probation],
            "dead set": [
                ("", key) for key in (keys.dead, keys.dead_jobs, keys.dead_caps, keys.dead_junk)
            ],
            "statistics": [
                *(("", key) for key in (keys.stats, keys.stats_rows, keys.runs, keys.run_rows)),
                *(("", key) for key in (keys.reports, keys.minutes, keys.minute_rows)),
                *(("", key) for key in (keys.deaths, keys.audit, keys.bulk)),
            ],
        }
        chosen = {kind: names[:KEYS_MEASURED] for kind, names in names_by_kind.items()}
        commands = [
            ("MEMORY", "USAGE", key, "SAMPLES", ITEMS_SAMPLED)
            for names in chosen.values()
            for _, key in names
        ]
        replies = self._at_once(commands, errors=True)
        if replies and all(isinstance(reply, Exception) for reply in replies):
            return None
        found, at = dict[str, KindUse](), 0
        for kind, names in chosen.items():
            some = replies[at : at + len(names)]
            # A key that does not exist has no size.
            sizes = [reply if isinstance(reply, int) else 0 for reply in some]
            at += len(names)
            most = max(sizes, default=0)
            largest = names[sizes.index(most)][0] if most else ""
            total = len(names_by_kind[kind])
            measured = sum(not isinstance(reply, Exception) for reply in some)
            size = sum(sizes) if measured or not names else None
            found[kind] = KindUse(size, largest, most, measured, total)
        return found
