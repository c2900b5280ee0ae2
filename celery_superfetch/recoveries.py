"""Counters of jobs: how often each was recovered, and the move that counts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redis import Redis

from .config import Config
from .keys import Keys
from .recovery import Counters, Recovery
from .scripts import Call, Scripts

FIELDS = ("strikes", "recoveries", "history", "probation")


class Recoveries:
    """Strikes and recoveries (``superfetch:recoveries:<digest>``)."""

    def __init__(self, client: Redis, keys: Keys, config: Config) -> None:
        self.keys = keys
        self.config = config
        self.scripts = Scripts(client)

    def counters(self, digests: Sequence[str]) -> list[Counters]:
        """The counters of some jobs, in one command."""
        names = [self.keys.recoveries(digest) for digest in digests]
        return [
            Counters(
                int(strikes or 0),
                int(count or 0),
                tuple(json.loads(history)) if history else (),
                bool(probation),
                recorded=strikes is not None,
            )
            for strikes, count, history, probation in self.scripts.run("counters", names, FIELDS)
        ]

    def recover(self, recoveries: Sequence[Recovery], expires: int, *, marked: bool) -> Call:
        """The call that counts jobs and gives each back, to the front of its queue or on probation.

        Arguments:
            recoveries: of one owner, one queue list and for one reason; newest claim first.
            expires: ms of the queue's x-expires; 0 for none.
            marked: the owner must be marked reaped (False: it lives and asks for itself).
        """
        keys, first = self.keys, recoveries[0]
        owner, queue_list = first.job.owner, first.job.queue_list
        args: list[Any] = [
            int(marked),
            int(self.config.strike_window),
            expires,
            queue_list,
            owner,
            first.reason,
        ]
        for recovery in recoveries:
            job = recovery.job
            args += [
                job.payload,
                recovery.recoveries - 1,
                recovery.strikes,
                recovery.blame.value,
                int(recovery.probation),
                job.claim_id,
            ]
        return Call(
            "recover",
            [
                keys.facts(owner),
                keys.private(owner, queue_list),
                keys.queue(queue_list),
                keys.recovered,
                keys.stats,
                keys.running(owner),
                keys.probation(queue_list),
                keys.on_probation,
                *(keys.recoveries(recovery.digest) for recovery in recoveries),
            ],
            args,
        )
