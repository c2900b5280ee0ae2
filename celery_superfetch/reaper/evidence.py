"""Gathers the evidence of each registered owner, and has the verdict say whether it is dead.

The reaper calls ``judge_all`` in each pass: in a worker's maintenance thread, in beat's reap task
and in `superfetch reap`. `superfetch reap --wait` and `superfetch drain` watch owners for longer,
by an ``Onlooker``. The console takes one look, without watching. A worker's maintenance thread
calls ``local_evidence`` each second, for owners of its host. All of this only reads: a process that
dies here leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from time import monotonic, sleep

from ..model.facts import HUNG, Facts
from ..model.process import ProcessImage, look_at
from ..model.silence import Silence
from ..model.verdict import MISSED_HEARTBEATS, Evidence, Reason, judge
from ..store.redis.clients import run_id
from ..store.registry import Registry

LOOK_INTERVAL = 1.0  # seconds between two looks
LOCAL = Reason.RUNNING, Reason.RUNNING_SILENT  # verdicts on owners of this host that live


def judge_all(
    registry: Registry,
    silence: Silence | None = None,
    only: Collection[str] | None = None,
    surviving: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> list[tuple[Facts, int, Reason]]:
    """Return every registered owner, its score (server ms of its last heartbeat) and its verdict.

    Arguments:
        silence: for how long owners have had no heartbeat while this process watched; None: it did
            not watch, and no owner is dead by its silence.
        only: the names of some owners; None: all.
        surviving: makes the context in which one owner is judged. If it swallows an error, that
            owner is left out.
    """
    scores = registry.owners()
    chosen = sorted(scores if only is None else scores.keys() & set(only))
    if not scores:
        return []
    # An owner can only be superseded by one of its own host: so all of these hosts are read.
    hosts = {owner.partition("|")[0] for owner in chosen}
    facts = registry.facts(o for o in scores if o.partition("|")[0] in hosts)
    # Called only for an owner without recent heartbeats, and then asked once.
    server_run = cache(lambda: run_id(registry.client))
    here, now, judged = ProcessImage.current(), silence.clock() if silence else 0.0, []
    near = [neighbour for neighbour in facts.values() if here.same_ground(neighbour.process)]
    for owner in chosen:
        with surviving(f"owner {owner}"):
            owner_facts = facts[owner]
            quiet = silence.silent_for(owner, scores[owner], now) if silence else None
            evidence = local_evidence(owner_facts, here, near, quiet)
            missed = MISSED_HEARTBEATS * owner_facts.heartbeat_interval
            if evidence.process is None and (quiet or 0.0) >= missed:
                evidence = replace(
                    evidence, connected=registry.connected(owner_facts, server_run())
                )
            judged.append((owner_facts, scores[owner], judge(evidence)))
    return judged


class Onlooker:
    """A watch over all owners, for a command. A worker gets the scores of stale owners in the
    answers to its heartbeats; a command sends none, and reads all scores about once a second."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = monotonic) -> None:
        self.registry = registry
        self.silence = Silence(registry.config.heartbeat_interval, clock)
        self._scores: dict[str, int] = {}

    def judge(self) -> list[tuple[Facts, int, Reason]]:
        """Return every owner with its score and verdict, and note its score for the next call. The
        verdict knows the silence that the calls before this one have found."""
        now, judged = self.silence.clock(), judge_all(self.registry, self.silence)
        scores = {facts.owner: score for facts, score, _ in judged}
        # An owner with the same score as at the last call has had no heartbeat since.
        self.silence.note(dict(scores.items() & self._scores.items()), now)
        self._scores = scores
        return judged

    def stay(
        self, seconds: float, on_wait: Callable[[int, float], object] = lambda *_: None
    ) -> None:
        """Watch until no owner could still be found dead by a longer silence.

        Arguments:
            seconds: for how long at most.
            on_wait: gets the number of owners that are still watched, and the seconds left, before
                each pause.
        """
        end, judged = monotonic() + seconds, self.judge()
        first = self._scores
        while (left := end - monotonic()) > 0:
            watched = sum(
                not (reason.dead or reason in LOCAL) and score == first.get(facts.owner)
                for facts, score, reason in judged
            )
            if not watched:
                return
            on_wait(watched, left)
            sleep(min(LOOK_INTERVAL, self.silence.longest_gap / 2))
            judged = self.judge()


def local_evidence(
    facts: Facts, here: ProcessImage, others: Collection[Facts], silent_for: float | None
) -> Evidence:
    """Return the evidence of an owner that needs no command to the server.

    Arguments:
        here: this process.
        others: the records of other owners of this host.
        silent_for: for how long the owner has had no heartbeat (s); None: not known.
    """
    owner, local = facts.process, here.same_ground(facts.process)
    process = look_at(owner.pid, owner.start_time) if local else None
    # PID_REUSED: the start time that is read now is not the recorded one. That may only come from a
    # clock that was set. For a record with this process's pid it is known: this process read its
    # start time once, and the record is its own or that of an earlier process.
    if process is Reason.PID_REUSED and owner.pid == here.pid:
        process = Reason.RUNNING if owner.start_time == here.start_time else Reason.PROCESS_GONE
    same_pid = (other for other in others if local and other.process.pid == owner.pid)
    newer = [other.process for other in same_pid if other.registered_at > facts.registered_at]
    return Evidence(
        heartbeat_interval=facts.heartbeat_interval,
        owner_ttl=facts.owner_ttl,
        silent_for=silent_for,
        process=process,
        # A process that gets a HUP runs the worker again under its pid: the owner is superseded by
        # the newer program, which is this one or a registered one.
        superseded=local
        and any(p.same_process(owner) and p.image != owner.image for p in (here, *newer)),
        pool_left=local
        and process is not Reason.RUNNING
        and any(look_at(*child) is Reason.RUNNING for child in facts.pool),
        hung=facts.state == HUNG,
    )
