"""Every Redis key of this package (docs/reference/redis_data.md), with ``global_keyprefix`` in it:
kombu's prefixing client rewrites only a script's first key and none of BLMOVE or LRANGE."""

from __future__ import annotations

import re


class Keys:
    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        own = f"{prefix}superfetch:"
        self._own = own
        self.owners = f"{own}owners"  # ZSET owner -> last heartbeat (server ms)
        self.reaped = f"{own}reaped"  # ZSET owner -> when its tombstone may go (server ms)
        self.recovered = f"{own}recovered"  # STRING: some job has counters, so claims look for them
        self.on_probation = f"{own}probation"  # SET of the queue lists with suspects on probation
        self.parked = f"{own}parked"  # ZSET queue list -> when its next job is due (server ms)
        self.rest = f"{own}rest"  # HASH of the latest rest for suspects, and when the next may be
        self.stopped = f"{own}stopped"  # ZSET JSON of a job that many stops cut -> when (server ms)
        self.dead = f"{own}dead"  # ZSET job id -> time of death (server ms)
        self.dead_jobs = f"{own}dead:jobs"  # HASH job id -> JSON record of the killed job
        self.dead_caps = f"{own}dead:caps"  # HASH job id -> ZSET of its cap (``dead_caps.py``)
        self.dead_bytes = f"{own}dead:bytes"  # HASH ZSET of a cap -> bytes of the records under it
        self.dead_junk = f"{own}dead:junk"  # ZSET as ``dead``, of the unparseable ones of any app
        self.unannounced = f"{own}dead:unannounced"  # SET of ids whose caller has not been told
        self.runs = f"{own}runs"  # HASH how runs ended and how long they took -> number
        self.run_rows = f"{own}runs:rows"  # ZSET row of ``runs`` -> when it grew last (server ms)
        self.stats = f"{own}stats"  # HASH counter -> number, by list and task, too
        self.stats_rows = f"{own}stats:rows"  # ZSET row of ``stats`` -> when it grew (server ms)
        self.deaths = f"{own}deaths"  # ZSET JSON of an owner's death -> when (server ms)
        self.last_pass = f"{own}pass"  # HASH of the last pass: when, by whom, what it found
        self.beats = f"{own}beats"  # HASH app -> the last tick of its beat
        self.served = f"{own}served"  # ZSET queue list -> when its last owner left (server ms)
        self.oldest = f"{own}oldest"  # HASH queue list -> digest of its oldest job, since when (ms)
        # Never exists: a cluster that moves our slot then refuses a script before it begins, and
        # not at a list that it has itself emptied, between a job's departure and its arrival.
        self.never = f"{own}never"

    def queue(self, queue_list: str) -> str:
        return f"{self.prefix}{queue_list}"  # kombu's LIST, one for each priority step

    def private(self, owner: str) -> str:
        """HASH claim id -> payload; ``w`` and the claim id, of each job that waits -> empty;
        ``s`` and the claim id, of each that has handed on steps -> their notes."""
        return f"{self._own}private:{owner}"

    def landing(self, owner: str, queue_list: str) -> str:
        return f"{self._own}landing:{owner}:{queue_list}"  # LIST of payloads no claim has named yet

    def parked_of(self, queue_list: str) -> str:
        """ZSET of task id, claim and payload -> when it is due (server ms)."""
        return f"{self._own}parked:{queue_list}"

    def facts(self, owner: str) -> str:
        return f"{self._own}owner:{owner}"  # HASH of what an owner registered, or a tombstone

    def probation(self, queue_list: str) -> str:
        return f"{self._own}probation:{queue_list}"  # LIST of payloads: suspects

    def host(self, host: str) -> str:
        return f"{self._own}host:{host}"  # SET of the owners that this host registered

    def recoveries(self, digest: str) -> str:
        return f"{self._own}recoveries:{digest}"  # HASH; TTL = strike window, gone with the ack

    def dead_of(self, app_name: str) -> str:
        return f"{self._own}dead:of:{app_name}"  # ZSET id -> time of death: one app's of ``dead``

    def dead_never_ran(self, app_name: str) -> str:
        return f"{self._own}dead:never_ran:{app_name}"  # ZSET as ``dead_of``, of what never ran

    def dead_dropped(self, app_name: str) -> str:
        return f"{self._own}dead:dropped:{app_name}"  # HASH ZSET of a cap -> dropped and not logged

    def lock(self, scope: str) -> str:
        return f"{self._own}lock:{scope}"  # STRING with a TTL: one turn per interval and scope

    def pattern(self, kind: str = "", family: str = "superfetch:") -> str:
        """SCAN pattern of everything that is ours, or of one kind (``parse``)."""
        return re.sub(r"([\\*?\[\]^])", r"\\\1", self.prefix) + f"{family}{kind}*"

    def parse(self, key: bytes) -> tuple[str, str, str]:
        """Of a key that ``pattern`` found: its kind, with the colon, and as far as it has them its
        owner (which holds no colon) and its queue list."""
        kind, colon, rest = key.decode(errors="replace")[len(self._own) :].partition(":")
        owner, _, queue_list = rest.partition(":")
        return kind + colon, owner, queue_list
