"""What owners hold whose data are of schema 1: a private list for each queue list, of jobs without
names, and beside it a hash of those that waited for their time."""

from __future__ import annotations

import logging
from collections import Counter

from ..model.facts import Facts
from ..model.log_text import one_line_each
from .database import Structure
from .wire.server import warn_once

logger = one_line_each(logging.getLogger(__name__))

SCHEMA = "1"


class FirstSchema(Structure):
    def meet(self, facts: Facts) -> None:
        """Say so of one that lives."""
        if facts.schema == SCHEMA:
            warn_once(
                f"Worker {facts.node or facts.owner} runs an earlier version, which keeps its jobs "
                "in another form (schema 1) and cannot give back those of this version. Stop it "
                "soon: what it holds then goes back to its queues, uncounted."
            )

    def requeue(self, facts: Facts) -> Counter[str]:
        """Move what a dead one holds to the front of its queues: queue list -> how many jobs."""
        moved: Counter[str] = Counter()
        owner = facts.owner
        for name in facts.lists if facts.schema == SCHEMA else ():
            private, held, queue = self.keys.first_schema(owner, name)
            moved[name] = self._put_back(private, queue)
            for id, payload in self.client.hgetall(held).items():
                self.client.rpush(queue, payload)  # twice, where this is cut short here
                self.client.hdel(held, id)
                moved[name] += 1
        if moved.total():
            logger.warning(
                "%d jobs of %s were kept in an earlier form (schema 1): they are back on their "
                "queues, uncounted.",
                moved.total(),
                owner,
            )
        return moved
