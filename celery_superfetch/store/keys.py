"""The name, type and content of every Redis key of this package (docs/reference/redis_data.md).

Each ``Database`` has one ``Keys``; all of ``store/`` takes names from it. ``keyspace.py`` alone
calls ``pattern`` and ``parse``. The names include ``global_keyprefix``: kombu's client, which adds
the prefix by itself, would miss all keys of a script but the first, and those of BLMOVE and LRANGE.

These are strings: nothing is sent to Redis, and a death of the process leaves nothing.

Words: a *job* is the bytes of a message; its *digest* is their SHA-1. An *owner* is a process that
claims jobs. A *suspect* is a job that may have crashed its worker; on *probation* it waits until it
can run alone. An owner *quiesces* (claims nothing until its jobs have ended) to run a suspect. A
*parked* job waits for its ETA. A *stop* is a run cut short because its worker was stopping. A
*step* is a message that a job publishes because it ends, the next task of a chain, say.
"""

from __future__ import annotations

import re


class Keys:
    """The names of one app's keys. An attribute is a name; a method makes one of its arguments."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        own = f"{prefix}superfetch:"
        self._own = own
        self.owners = f"{own}owners"  # ZSET owner -> last heartbeat (server ms)
        # ZSET of the owners of each group (those that serve the same lists) -> 0. A member is the
        # group, ``:a:`` and the owner; while the owner waits for jobs, also one with ``:w:``.
        self.ranks = f"{own}ranks"
        # ZSET owner -> until when passes drain its lists again (server ms): the index of tombstones
        self.reaped = f"{own}reaped"
        # STRING, a flag: some job has a history. Without it claims look up no histories.
        self.recovered = f"{own}recovered"
        self.on_probation = f"{own}probation"  # SET of the queue lists that have suspects
        self.parked = f"{own}parked"  # ZSET queue list -> when its next job is due (server ms)
        # HASH of the latest quiesce: its owner, begin and end, and the length of the next one
        self.rest = f"{own}rest"
        # ZSET JSON of a job with many stops -> time of its last stop (server ms)
        self.stopped = f"{own}stopped"
        self.dead = f"{own}dead"  # ZSET id of a dead job -> time of death (server ms)
        self.dead_jobs = f"{own}dead:jobs"  # HASH id -> JSON record of the dead job
        # HASH id -> the ZSET of the cap under which it is counted (``dead_caps.py``)
        self.dead_caps = f"{own}dead:caps"
        self.dead_bytes = f"{own}dead:bytes"  # HASH ZSET of a cap -> bytes of the records under it
        self.dead_junk = f"{own}dead:junk"  # ZSET as ``dead``: unparseable messages, of all apps
        self.unannounced = f"{own}dead:unannounced"  # SET of ids whose caller has not been told
        self.runs = f"{own}runs"  # HASH how runs ended and how long they took -> number
        self.run_rows = f"{own}runs:rows"  # ZSET row of ``runs`` -> when it grew last (server ms)
        self.stats = f"{own}stats"  # HASH counter (also by queue list and task) -> number
        self.stats_rows = f"{own}stats:rows"  # ZSET row of ``stats`` -> when it grew (server ms)
        self.deaths = f"{own}deaths"  # ZSET JSON of an owner's death -> when (server ms)
        self.last_pass = f"{own}pass"  # HASH of the last reaper's pass: when, by whom, result
        self.beats = f"{own}beats"  # HASH app -> the last tick of its beat
        self.served = f"{own}served"  # ZSET queue list -> when its last owner left (server ms)
        # HASH queue list -> digest of its oldest job, and since when that is the oldest (server ms)
        self.oldest = f"{own}oldest"
        # Never exists; each script names it. While a cluster moves these keys to another node, a
        # node refuses all that names a key which it does not have: because of this key, the whole
        # script, before it begins. Otherwise the script could be refused half-way, at a list that
        # it has itself emptied, and lose a job.
        self.never = f"{own}never"

    def queue(self, queue_list: str) -> str:
        """LIST, kombu's own: a queue has one for each priority, and its name is the queue list."""
        return f"{self.prefix}{queue_list}"

    def private(self, owner: str) -> str:
        """HASH, the private list of an owner: claim id -> payload. Beside a claim there may be two
        notes: ``w`` and the claim id (the waiting note): the job has not started; ``s`` and the
        claim id (the steps note): the steps that the job has published."""
        return f"{self._own}private:{owner}"

    def landing(self, owner: str, queue_list: str) -> str:
        """LIST of payloads that a blocking read of the owner has moved here; the owner's next claim
        moves them on to its private list."""
        return f"{self._own}landing:{owner}:{queue_list}"

    def parked_of(self, queue_list: str) -> str:
        """ZSET of task id, claim and payload -> when it is due (server ms)."""
        return f"{self._own}parked:{queue_list}"

    def facts(self, owner: str) -> str:
        """HASH, the owner record. Of a reaped owner it stays for a while, as its tombstone."""
        return f"{self._own}owner:{owner}"

    def probation(self, queue_list: str) -> str:
        return f"{self._own}probation:{queue_list}"  # LIST of payloads: suspects

    def host(self, host: str) -> str:
        return f"{self._own}host:{host}"  # SET of the owners that this host registered

    def recoveries(self, digest: str) -> str:
        """HASH, the history of a job that was recovered or requeued: how often, and with how many
        strikes and stops; deleted by its ack, or after the strike window."""
        return f"{self._own}recoveries:{digest}"

    def dead_of(self, app_name: str) -> str:
        """ZSET as ``dead``: the dead jobs of one app that ran."""
        return f"{self._own}dead:of:{app_name}"

    def dead_never_ran(self, app_name: str) -> str:
        """ZSET as ``dead``: the dead messages of one app that never ran."""
        return f"{self._own}dead:never_ran:{app_name}"

    def dead_dropped(self, app_name: str) -> str:
        """HASH ZSET of a cap -> number of jobs that kills have dropped and no pass has logged."""
        return f"{self._own}dead:dropped:{app_name}"

    def lock(self, scope: str) -> str:
        """STRING with a TTL, the lock of a scope; its value is the TTL at first (ms)."""
        return f"{self._own}lock:{scope}"

    def pattern(self, kind: str = "", family: str = "superfetch:") -> str:
        """Return the SCAN pattern of all keys of this package, or of one kind (``private:``, say).
        ``family``: another beginning than this package's, for kombu's bindings."""
        return re.sub(r"([\\*?\[\]^])", r"\\\1", self.prefix) + f"{family}{kind}*"

    def parse(self, key: bytes) -> tuple[str, str, str]:
        """Split a key of this package into its kind, up to the first colon; the part up to the next
        colon; and what follows. Of a private list, a landing list and an owner record these are the
        owner, which contains no colon, and the queue list. A part that is missing is empty."""
        kind, colon, rest = key.decode(errors="replace")[len(self._own) :].partition(":")
        owner, _, queue_list = rest.partition(":")
        return kind + colon, owner, queue_list
