"""The watch of passes that do not stay: beat's task and the CLI look once and are gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from redis import Redis

from .config import Config
from .keys import Keys


class Suspects:
    """What one-shot passes saw, added up in ``superfetch:suspects``.

    Each pass adds the time since the pass before, and at most two reap intervals of it: a
    step of the server's clock, or a night without passes, adds no more than that.
    """

    def __init__(self, client: Redis, keys: Keys, config: Config) -> None:
        self.client = client
        self.keys = keys
        self.most = 2 * config.reap_interval

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
        before = {owner.decode(): json.loads(row) for owner, row in rows.items()}
        silent: dict[str, float] = {}
        for owner, score in scores.items():
            row = before.get(owner)
            if row is None or row["score"] != score or row["run_id"] != run_id:
                silent[owner] = 0.0
            else:
                passed = max(0.0, (now - row["at"]) / 1000)
                silent[owner] = row["silent"] + min(passed, self.most)
        if keep:
            self._write(scores, silent, now, run_id, gone=set(before) - set(scores))
        return silent

    def _write(
        self,
        scores: Mapping[str, int],
        silent: Mapping[str, float],
        now: int,
        run_id: str,
        gone: set[str],
    ) -> None:
        with self.client.pipeline(transaction=False) as pipe:
            if gone:
                pipe.hdel(self.keys.suspects, *gone)
            if silent:
                rows = {
                    owner: json.dumps(
                        {"score": scores[owner], "silent": seconds, "at": now, "run_id": run_id}
                    )
                    for owner, seconds in silent.items()
                }
                pipe.hset(self.keys.suspects, mapping=rows)  # type: ignore[arg-type]
            pipe.execute()
