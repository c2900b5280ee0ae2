"""The watch of passes that do not stay: beat's task and the CLI look once and are gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from ..model.facts import RETRY_INTERVAL
from .database import Structure, chunks
from .wire.scripts import Call

BATCH = 100  # owners that one script removes and writes at most: it keeps everybody else waiting


class Silences(Structure):
    """What one-shot passes saw, added up in ``superfetch:suspects``: the time between two passes,
    up to two reap intervals, once a further one still finds nothing, after as long as whoever lives
    needs to be heard again. So an outage, or a step of the server's clock, convicts nobody."""

    def look(
        self,
        scores: Mapping[str, int],
        intervals: Mapping[str, float],
        now: int,
        run_id: str,
        *,
        keep: bool = True,
    ) -> dict[str, float]:
        """Take in one pass; owner -> seconds of silence that all passes saw together. ``scores``
        are every owner's last heartbeats (server ms), as read ``now``; ``intervals`` the seconds
        between those of the owners looked at. Another ``run_id`` of the server begins anew."""
        known = self.client.hgetall(self.keys.silences)
        before = {owner.decode(errors="replace"): _Seen.load(row) for owner, row in known.items()}
        seen: dict[str, _Seen] = {}
        for owner, interval in intervals.items():
            fresh, wait = _Seen(scores[owner], run_id, now), interval + RETRY_INTERVAL
            seen[owner] = fresh.after(before.get(owner), wait, self.config.reap_interval)
        if keep:
            rows = dict.fromkeys(sorted(before.keys() - scores.keys()), "")
            rows |= {owner: json.dumps(row) for owner, row in seen.items()}
            words = [*chain.from_iterable(rows.items())]
            key, batches = [self.keys.silences], chunks(words, 2 * BATCH)
            self.scripts.run_all([Call("silence", key, some) for some in batches])
        return {owner: row.silent for owner, row in seen.items()}


class _Seen(NamedTuple):
    score: int
    run_id: str
    at: int  # time of the latest pass that came late enough after the one before it, server ms
    silent: float = 0.0  # seconds of silence up to the pass before, and from there to that pass
    gap: float = 0.0

    def after(self, before: _Seen | None, wait: float, reap_interval: float) -> _Seen:
        """Added to what the passes before saw; the same says nothing within ``wait`` seconds."""
        if before is None or before[:2] != self[:2]:
            return self
        past = (self.at - before.at) / 1000
        if past < 0:  # the server's clock was set back
            return before._replace(at=self.at)
        if past < wait:
            return before
        gap = min(past, max(wait, 2 * reap_interval))
        return self._replace(silent=before.silent + before.gap, gap=gap)

    @classmethod
    def load(cls, row: bytes) -> _Seen | None:
        """Read a row; a broken one counts as none."""
        try:
            score, run_id, at, silent, gap = json.loads(row)
            return cls(int(score), str(run_id), int(at), float(silent), float(gap))
        except (TypeError, ValueError):
            return None
