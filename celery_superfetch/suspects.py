"""The watch of passes that do not stay: beat's task and the CLI look once and are gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from redis import Redis

from .config import Config
from .keys import Keys
from .scripts import Call, Scripts

#: Owners that one script removes and writes at most: it keeps everybody else waiting.
BATCH = 100


class Suspects:
    """What one-shot passes saw, added up in ``superfetch:suspects``.

    The time between two passes counts only up to two reap intervals, and the latest of it only
    up to one heartbeat: a step of the server's clock or an outage between two passes convicts
    nobody, since whoever lives is heard by the pass after it.
    """

    def __init__(self, client: Redis, keys: Keys, config: Config) -> None:
        self.client = client
        self.keys = keys
        self.scripts = Scripts(client)
        self.most = 2 * config.reap_interval
        self.latest = config.heartbeat_interval

    def look(
        self, scores: Mapping[str, int], now: int, run_id: str, *, keep: bool = True
    ) -> dict[str, float]:
        """Take in one pass; owner -> seconds of silence that all passes saw together.

        Arguments:
            scores: every registered owner -> its last heartbeat (server ms).
            now: server ms.
            run_id: which run of the server this is; what was seen in another does not count.
            keep: False only reads (a dry run, ``status``).
        """
        rows: Any = self.client.hgetall(self.keys.suspects)
        before = {owner.decode(errors="replace"): _Seen.load(row) for owner, row in rows.items()}
        seen: dict[str, _Seen] = {}
        for owner, score in scores.items():
            last = before.get(owner)
            if last is None or (last.score, last.run_id) != (score, run_id):
                seen[owner] = _Seen(score, run_id, now)
            else:
                gap = min(max(0.0, (now - last.at) / 1000), self.most)
                seen[owner] = _Seen(score, run_id, now, last.silent + last.gap, gap)
        if keep:
            self._write(seen, gone=set(before) - set(scores))
        return {owner: row.silent + min(row.gap, self.latest) for owner, row in seen.items()}

    def _write(self, seen: Mapping[str, _Seen], gone: set[str]) -> None:
        rows = [(owner, json.dumps(row)) for owner, row in seen.items()]
        names = sorted(gone)
        calls = []
        for at in range(0, max(len(rows), len(names), 1), BATCH):
            removed = names[at : at + BATCH]
            written = [part for row in rows[at : at + BATCH] for part in row]
            calls.append(Call("suspect", [self.keys.suspects], [len(removed), *removed, *written]))
        self.scripts.run_all(calls)


class _Seen(NamedTuple):
    """One owner as the latest pass saw it."""

    score: int
    run_id: str
    #: Time of that pass, server ms.
    at: int
    #: Seconds of silence up to the pass before, and from there to that pass.
    silent: float = 0.0
    gap: float = 0.0

    @classmethod
    def load(cls, row: bytes) -> _Seen | None:
        """Read a row; a broken one counts as none."""
        try:
            score, run_id, at, silent, gap = json.loads(row)
            return cls(int(score), str(run_id), int(at), float(silent), float(gap))
        except (TypeError, ValueError):
            return None
