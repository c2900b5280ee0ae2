"""Gathers the evidence of each owner (a process that claims jobs), and decides by ``judge`` of
``model/verdict.py`` whether the owner is dead.

The reaper calls ``judge_all`` in each pass: in a worker's maintenance thread, in beat's reap task
and in `superfetch reap`. The commands `superfetch reap --wait` and `superfetch rollback` watch
owners for longer, with an ``Onlooker``. The console (``inspector.py``: `superfetch status`, the
page) calls ``judge_all`` once, without having watched. A worker's maintenance thread calls
``local_evidence`` each second, for owners of its host, and ``Inspector.near`` for each owner that
it lists.

All of this only reads. If the process dies, only its memory of missing heartbeats is lost: the next
observer watches from the beginning, and finds a death on another host later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from time import monotonic, sleep

from ..model.owner_record import HUNG, OwnerRecord
from ..model.process import ProcessImage, look_at
from ..model.staleness import StalenessTracker
from ..model.verdict import MISSED_HEARTBEATS, Evidence, Reason, judge
from ..store.owner_registry import OwnerRegistry
from ..store.redis.clients import run_id

ONLOOKER_INTERVAL_S = 1.0  # seconds between two looks
ALIVE_HERE = Reason.RUNNING, Reason.RUNNING_SILENT  # verdicts on owners of this host that live


def judge_all(
    registry: OwnerRegistry,
    staleness: StalenessTracker | None = None,
    only: Collection[str] | None = None,
    logging_errors: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> list[tuple[OwnerRecord, int, Reason]]:
    """Return every registered owner, its score (server ms of its last heartbeat) and its verdict.

    Arguments:
        staleness: for how long owners have sent no heartbeat while this process watched. None: this
            process has not watched, so no owner is found dead by missing heartbeats alone.
        only: the names of some owners; None: all.
        logging_errors: makes the context in which one owner is judged. If it swallows an error,
            that owner is left out.
    """
    scores = registry.owners()
    chosen = sorted(scores if only is None else scores.keys() & set(only))
    if not scores:
        return []
    # An owner is also dead if a newer program of the same process is registered (``superseded``):
    # so all owners of these hosts are read. The name of an owner begins with its host.
    hosts = {owner.partition("|")[0] for owner in chosen}
    records = registry.records(o for o in scores if o.partition("|")[0] in hosts)
    # The id of the server process. Read once, and only if some owner has no recent heartbeat: the
    # connections in an owner's record are those to one server process.
    server_run = cache(lambda: run_id(registry.client))
    here, now, judged = ProcessImage.current(), staleness.clock() if staleness else 0.0, []
    near = [peer for peer in records.values() if here.is_local_to(peer.process)]
    for owner in chosen:
        with logging_errors(f"worker (owner={owner})"):
            record = records[owner]
            quiet = staleness.staleness_of(owner, scores[owner], now) if staleness else None
            evidence = local_evidence(record, here, near, quiet)
            missed = MISSED_HEARTBEATS * record.heartbeat_interval
            if evidence.process is None and (quiet or 0.0) >= missed:
                evidence = replace(evidence, connected=registry.connected(record, server_run()))
            judged.append((record, scores[owner], judge(evidence)))
    return judged


class Onlooker:
    """A watch over all owners, for a command. A command sends no heartbeats, so it reads the scores
    of all owners, ``pause_s`` seconds after the last time. (A worker gets the scores of stale
    owners, which have missed two heartbeats, in the answers to its own heartbeats.)"""

    def __init__(self, registry: OwnerRegistry, clock: Callable[[], float] = monotonic) -> None:
        self.registry = registry
        self.staleness = StalenessTracker(registry.config.heartbeat_interval, clock)
        self._scores: dict[str, int] = {}

    @property
    def pause_s(self) -> float:
        """Seconds between two calls of ``judge_owners``. If there were more than ``longest_gap``
        seconds from one call to the next, the watch would begin again each time, and find no owner
        dead."""
        return min(ONLOOKER_INTERVAL_S, self.staleness.longest_gap / 2)

    def judge_owners(self) -> list[tuple[OwnerRecord, int, Reason]]:
        """Return every owner with its score and verdict, and note its score for the next call. The
        first call cannot find missing heartbeats: they show in the calls that follow."""
        now, judged = self.staleness.clock(), judge_all(self.registry, self.staleness)
        scores = {record.owner: score for record, score, _ in judged}
        # An owner with the same score as at the last call has had no heartbeat since.
        self.staleness.observe(dict(scores.items() & self._scores.items()), now)
        self._scores = scores
        return judged

    def watch(
        self, seconds: float, on_wait: Callable[[int, float], object] = lambda *_: None
    ) -> None:
        """Watch until no owner is left that more watching may find dead: each is dead, has sent a
        heartbeat, or runs on this host.

        Arguments:
            seconds: for how long at most.
            on_wait: gets the number of owners that are still watched, and the seconds left, before
                each pause.
        """
        end, judged = monotonic() + seconds, self.judge_owners()
        first = self._scores
        while (left := end - monotonic()) > 0:
            watched = sum(
                not (reason.dead or reason in ALIVE_HERE) and score == first.get(record.owner)
                for record, score, reason in judged
            )
            if not watched:
                return
            on_wait(watched, left)
            sleep(self.pause_s)
            judged = self.judge_owners()


def local_evidence(
    record: OwnerRecord,
    here: ProcessImage,
    others: Collection[OwnerRecord],
    staleness_s: float | None,
) -> Evidence:
    """Return the evidence of an owner that needs no command to the server.

    Arguments:
        here: this process.
        others: the records of owners of this host; it may contain this owner.
        staleness_s: for how long the owner has had no heartbeat (s); None: not known.
    """
    owner, local = record.process, here.is_local_to(record.process)
    process = look_at(owner.pid, owner.start_time) if local else None
    # PID_REUSED: the start time that is read now is not the recorded one. The reason may be merely
    # that the system's clock was set. If the record has the pid of this process, that can be told
    # apart: this process read its own start time once, so a record with another start time is that
    # of an earlier process.
    if process is Reason.PID_REUSED and owner.pid == here.pid:
        process = Reason.RUNNING if owner.start_time == here.start_time else Reason.PROCESS_GONE
    same_pid = (other for other in others if local and other.process.pid == owner.pid)
    newer = [other.process for other in same_pid if other.registered_at > record.registered_at]
    return Evidence(
        heartbeat_interval=record.heartbeat_interval,
        owner_ttl=record.owner_ttl,
        staleness_s=staleness_s,
        process=process,
        # At a HUP a worker executes itself again (``os.execv``) under its pid. The newer program,
        # which is this process or a registered owner, supersedes the old owner.
        superseded=local
        and any(p.same_process(owner) and p.image != owner.image for p in (here, *newer)),
        pool_left=local
        and process is not Reason.RUNNING
        and any(look_at(*child) is Reason.RUNNING for child in record.pool),
        hung=record.state == HUNG,
    )
