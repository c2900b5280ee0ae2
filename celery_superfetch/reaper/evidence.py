"""Gathers what can be known of owners, for the verdict to judge."""

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
from ..store.registry import Registry
from ..store.wire.clients import run_id

LOOK_INTERVAL = 1.0  # seconds between two looks
LOCAL = Reason.RUNNING, Reason.RUNNING_SILENT  # said of the living of this host, silent or not


def judge_all(
    registry: Registry,
    silence: Silence | None = None,
    only: Collection[str] | None = None,
    surviving: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> list[tuple[Facts, int, Reason]]:
    """Every registered owner (or ``only`` some) with its score and verdict. Without a ``silence``
    nobody is known to be silent; ``surviving`` may leave out one that cannot be judged."""
    scores = registry.owners()
    chosen = sorted(scores if only is None else scores.keys() & set(only))
    if not scores:
        return []
    # Whoever superseded one of them is an owner of the same host.
    hosts = {owner.partition("|")[0] for owner in chosen}
    facts = registry.facts(o for o in scores if o.partition("|")[0] in hosts)
    # Asked at most once a pass, and not by a worker that has heard everybody lately.
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
    """The eyes of a process that has no heart, and stays: it looks each second or so."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = monotonic) -> None:
        self.registry = registry
        self.silence = Silence(registry.config.heartbeat_interval, clock)
        self._scores: dict[str, int] = {}

    def judge(self) -> list[tuple[Facts, int, Reason]]:
        """Every owner with its score and verdict, by all looks up to the one before."""
        now, judged = self.silence.clock(), judge_all(self.registry, self.silence)
        scores = {facts.owner: score for facts, score, _ in judged}
        # Quiet is who has the score that it had at the look before.
        self.silence.note(dict(scores.items() & self._scores.items()), now)
        self._scores = scores
        return judged

    def stay(
        self, seconds: float, on_wait: Callable[[int, float], object] = lambda *_: None
    ) -> None:
        """Look until no verdict waits for a longer silence, for so long at most; before each look
        ``on_wait`` gets the number of owners that are watched, and the seconds that are left."""
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
    """What can be known of an owner without asking the server; ``others`` are of this host."""
    owner, local = facts.process, here.same_ground(facts.process)
    process = look_at(owner.pid, owner.start_time) if local else None
    if process is Reason.PID_REUSED and owner.pid == here.pid:  # known; of others it may seem so
        process = Reason.RUNNING if owner.start_time == here.start_time else Reason.PROCESS_GONE
    same_pid = (other for other in others if local and other.process.pid == owner.pid)
    newer = [other.process for other in same_pid if other.registered_at > facts.registered_at]
    return Evidence(
        heartbeat_interval=facts.heartbeat_interval,
        owner_ttl=facts.owner_ttl,
        silent_for=silent_for,
        process=process,
        # By a newer program of the same process (HUP): this one, or a registered one.
        superseded=local
        and any(p.same_process(owner) and p.image != owner.image for p in (here, *newer)),
        pool_left=local
        and process is not Reason.RUNNING
        and any(look_at(*child) is Reason.RUNNING for child in facts.pool),
        hung=facts.state == HUNG,
    )
