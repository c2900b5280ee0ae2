"""What has happened lately: the deaths of owners, and the last pass that looked for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .database import Structure
from .stats import noted_recovery

#: Days and number of deaths that are remembered.
DAYS = 7
MOST = 1000


class History(Structure):
    """``superfetch:deaths`` and ``superfetch:pass``: written by passes, for who looks."""

    def died(self, **death: Any) -> None:
        """Remember the death of an owner; those that are too old, or too many, go."""
        now = self.database.server_time()
        key = self.keys.deaths
        with self.client.pipeline(transaction=False) as pipe:
            pipe.zadd(key, {json.dumps({"at": now, **death}): now})
            pipe.zremrangebyscore(key, "-inf", now - DAYS * 86_400_000)
            pipe.zremrangebyrank(key, 0, -MOST - 1)
            pipe.pexpire(key, DAYS * 86_400_000)
            if death.get("recovered", 0) + death.get("killed", 0):
                for field, more in noted_recovery(max(0, now - death["heard"])):
                    pipe.hincrby(self.keys.stats, field, more)
            pipe.execute()

    def deaths(self, most: int = 10) -> list[dict[str, Any]]:
        """The latest deaths, the newest first."""
        rows: Any = self.client.zrange(self.keys.deaths, 0, most - 1, desc=True)
        return [json.loads(row) for row in rows]

    def last_pass(self) -> Mapping[str, str]:
        """The last pass; empty where nobody has made one."""
        row: Any = self.client.hgetall(self.keys.last_pass)
        return {name.decode(): value.decode(errors="replace") for name, value in row.items()}
