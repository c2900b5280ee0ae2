"""Counters of jobs: how often each was recovered, and the move that counts."""

from __future__ import annotations

import json
from collections.abc import Sequence

from redis import Redis

from .config import Config
from .keys import Keys
from .recovery import Counters, Recovery
from .scripts import Call


class Recoveries:
    """Strikes and recoveries (``superfetch:recoveries:<digest>``)."""

    def __init__(self, client: Redis, keys: Keys, config: Config) -> None:
        self.client = client
        self.keys = keys
        self.config = config

    def counters(self, digests: Sequence[str]) -> list[Counters]:
        """The counters of some jobs, in one round trip."""
        with self.client.pipeline(transaction=False) as pipe:
            for digest in digests:
                pipe.hmget(self.keys.recoveries(digest), "strikes", "recoveries", "history")
            rows = pipe.execute()
        return [
            Counters(int(strikes or 0), int(count or 0), tuple(json.loads(history or b"[]")))
            for strikes, count, history in rows
        ]

    def recover(self, recovery: Recovery, expires: int, *, marked: bool) -> Call:
        """The call that gives a job back to the front of its queue and counts it.

        Arguments:
            expires: ms of the queue's x-expires; 0 for none.
            marked: the owner must be marked reaped (False: it lives and asks for itself).
        """
        keys, job = self.keys, recovery.job
        return Call(
            "recover",
            [
                keys.facts(job.owner),
                keys.private(job.owner, job.queue_list),
                keys.queue(job.queue_list),
                keys.recoveries(recovery.digest),
                keys.recovered,
                keys.stats,
            ],
            [
                job.payload,
                int(marked),
                recovery.recoveries - 1,
                int(recovery.strike),
                int(self.config.strike_window),
                expires,
                job.owner,
                recovery.reason,
            ],
        )
