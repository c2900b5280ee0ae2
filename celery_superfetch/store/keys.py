"""The name, type and content of every Redis key of this package (docs/reference/redis_data.md).

Each ``Database`` has one ``Keys``; all of ``store/`` takes names from it. ``keyspace.py`` alone
calls ``pattern`` and ``parse``. The names include ``global_keyprefix``. kombu's client adds the
prefix by itself, but only to the first key of a script, and to none of BLMOVE's and LRANGE's.

These are strings: nothing is sent to Redis, and if the process dies, nothing has to be repaired.

Words: a *job* is the bytes of a message; its *digest* is their SHA-1. An *owner* is a process that
claims jobs: it moves a job into its *private list*, which is a hash in Redis. A blocking read first
moves a job into a *landing list*. A *queue list* is a list of kombu's: a queue has one for each
priority. A *reaper* marks dead owners as *reaped* and moves their jobs to their queues; one run of
it is a *pass*. A *tombstone* is the record of a reaped owner: while it is there, passes move the
jobs that still come to the owner's lists. If the death may have been a job's own fault, the job
gets a *strike* in its history. A *suspect* is a job that may have crashed its worker; on
*probation* it waits until it can run alone. An owner *quiesces* (claims nothing until its jobs have
ended) to run a suspect. A *parked* job waits for its ETA. A *stop* is a run cut short because its
worker was stopping. From a *paused* queue no owner claims, until it is resumed. A *step* is a
message that a job publishes because it ends, the next task of a chain, say.
"""

from __future__ import annotations

import re


class Keys:
    """The names of one app's keys. An attribute is a name; a method returns a name that it makes
    from its arguments."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        base = f"{prefix}superfetch:"
        self._base = base
        self.owners = f"{base}owners"  # ZSET owner -> last heartbeat (server ms)
        # ZSET with a score of 0 for all, to count by names. A group is all owners that serve the
        # same lists. Each owner has a member of the group's name, ``:a:`` and its own name, and
        # while it waits for jobs a second one with ``:w:``. Heartbeats count the members of their
        # group: they learn their rank, and how many owners there are and wait.
        self.ranks = f"{base}ranks"
        # ZSET owner -> until when passes move jobs from its lists (server ms): index of tombstones
        self.reaped = f"{base}reaped"
        # STRING, a flag: some job has a history. Without it claims look up no histories.
        self.has_history = f"{base}has_history"
        self.on_probation = f"{base}probation"  # SET of the queue lists that have suspects
        # HASH queue -> JSON of its pause (when, by whom): no owner claims from the queue. No TTL.
        self.paused = f"{base}paused"
        # HASH id of a change by an operator -> JSON of its entry in the audit list; 1,000 at most
        self.audit = f"{base}audit"
        # HASH id of a bulk action that is under way -> JSON of the ids of its jobs; ten at most
        self.bulk = f"{base}bulk"
        self.parked = f"{base}parked"  # ZSET queue list -> when its next job is due (server ms)
        # HASH of the latest quiesce: its owner, begin and end, and the length of the next one
        self.quiesce = f"{base}quiesce"
        # ZSET JSON of a job with many stops -> time of its last stop (server ms)
        self.stopped = f"{base}stopped"
        self.dead = f"{base}dead"  # ZSET id of a dead job -> time of death (server ms)
        self.dead_jobs = f"{base}dead:jobs"  # HASH id -> JSON record of the dead job
        # HASH id -> the ZSET of the cap under which it is counted (``dead_caps.py``)
        self.dead_caps = f"{base}dead:caps"
        # HASH name of a cap's ZSET -> bytes of the records under that cap
        self.dead_bytes = f"{base}dead:bytes"
        self.dead_junk = f"{base}dead:junk"  # ZSET as ``dead``: unparseable messages, of all apps
        self.unannounced = f"{base}dead:unannounced"  # SET of ids whose caller was not informed yet
        self.runs = f"{base}runs"  # HASH counter (how runs ended, how long they took) -> number
        self.run_rows = f"{base}runs:rows"  # ZSET row of ``runs`` -> when it grew last (server ms)
        # ZSET latest report of run counts of each worker -> when it was added (server ms)
        self.reports = f"{base}runs:reports"
        # HASH minutes of a slot, event and queue list -> the counts of the latest slots, for charts
        self.minutes = f"{base}minutes"
        self.minute_rows = f"{base}minutes:rows"  # ZSET event and queue list -> when it grew (ms)
        self.stats = f"{base}stats"  # HASH counter (also by queue list and task) -> number
        self.stats_rows = f"{base}stats:rows"  # ZSET row of ``stats`` -> when it grew (server ms)
        self.deaths = f"{base}deaths"  # ZSET JSON of an owner's death -> when (server ms)
        self.last_pass = f"{base}last_pass"  # HASH of the last reaper's pass: when, by whom, result
        self.beats = f"{base}beats"  # HASH app -> the last tick of its beat
        self.served = f"{base}served"  # ZSET queue list -> when its last owner left (server ms)
        # HASH queue list -> digest of its oldest job, and since when that is the oldest (server ms)
        self.oldest = f"{base}oldest"
        # Never exists; each script names it. While a cluster moves these keys to another node, the
        # old node refuses a command that names a key which it does not have. Since it never has
        # this key, it refuses the whole script before it begins. Otherwise it could refuse a
        # command within the script, for a list that the script itself has emptied, and the job that
        # was in that list would be lost.
        self.never = f"{base}never"

    def queue(self, queue_list: str) -> str:
        """LIST, kombu's own: a queue has one for each priority. The name of the list, without the
        prefix, is what this package calls the queue list."""
        return f"{self.prefix}{queue_list}"

    def private(self, owner: str) -> str:
        """HASH, the private list of an owner: claim id -> payload. Beside a claim there may be two
        notes: ``w`` and the claim id (the waiting note): the job has not started; ``s`` and the
        claim id (the steps note): the steps that the job has published."""
        return f"{self._base}private:{owner}"

    def landing(self, owner: str, queue_list: str) -> str:
        """LIST of payloads that a blocking read of the owner has moved here; the owner's next claim
        moves them on to its private list."""
        return f"{self._base}landing:{owner}:{queue_list}"

    def parked_of(self, queue_list: str) -> str:
        """ZSET of task id, claim and payload -> when it is due (server ms)."""
        return f"{self._base}parked:{queue_list}"

    def owner_record(self, owner: str) -> str:
        """HASH, the owner record. Of a reaped owner it stays for a while, as its tombstone."""
        return f"{self._base}owner:{owner}"

    def probation(self, queue_list: str) -> str:
        return f"{self._base}probation:{queue_list}"  # LIST of payloads: suspects

    def host(self, host: str) -> str:
        return f"{self._base}host:{host}"  # SET of the owners that this host registered

    def history(self, digest: str) -> str:
        """HASH, the history of a job that was recovered or requeued: how often, and with how many
        strikes and stops; deleted by its ack, or after the strike window."""
        return f"{self._base}history:{digest}"

    def dead_of(self, app_name: str) -> str:
        """ZSET as ``dead``: the dead jobs of one app that ran."""
        return f"{self._base}dead:of:{app_name}"

    def dead_never_ran(self, app_name: str) -> str:
        """ZSET as ``dead``: the dead messages of one app that never ran."""
        return f"{self._base}dead:never_ran:{app_name}"

    def dead_dropped(self, app_name: str) -> str:
        """HASH name of a cap's ZSET -> number of jobs that were dropped when other jobs were
        dead-lettered, and that no pass has logged yet."""
        return f"{self._base}dead:dropped:{app_name}"

    def lock(self, scope: str) -> str:
        """STRING with a TTL, the lock of a scope; its value is the TTL at first (ms)."""
        return f"{self._base}lock:{scope}"

    def pattern(self, kind: str = "", family: str = "superfetch:") -> str:
        """Return the SCAN pattern of all keys of this package, or of one kind (``private:``, say).
        ``family``: what the names begin with, if not with this package's ``superfetch:``; kombu's
        bindings begin otherwise."""
        return re.sub(r"([\\*?\[\]^])", r"\\\1", self.prefix) + f"{family}{kind}*"

    def parse(self, key: bytes) -> tuple[str, str, str]:
        """Split a key of this package into three parts: its kind, up to and with the first colon;
        the part up to the next colon; and what follows. Of a private list, a landing list and an
        owner record the second part is the owner, which contains no colon, and the third is the
        queue list. Of other kinds only the first part means something. A part that is missing is
        empty."""
        kind, colon, parts = key.decode(errors="replace")[len(self._base) :].partition(":")
        owner, _, queue_list = parts.partition(":")
        return kind + colon, owner, queue_list
