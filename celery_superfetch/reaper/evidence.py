"""Gathers what can be known of owners, for the verdict to judge."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from time import monotonic

from ..model.facts import STUCK, Facts
from ..model.process import ProcessImage, look_at
from ..model.verdict import MISSED_HEARTBEATS, Evidence, Reason, judge
from ..model.watch import Watch
from ..store.registry import Registry
from ..store.silences import Silences
from ..store.wire.clients import run_id


def judge_all(
    registry: Registry,
    watch: Watch | None = None,
    only: Collection[str] | None = None,
    *,
    keep: bool = False,
    surviving: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> list[tuple[Facts, int, Reason]]:
    """Every registered owner (or ``only`` some) with its score and verdict. Without a ``watch``
    what is seen is added to what passes have seen of each silence, and noted if ``keep``;
    ``surviving`` may leave out one that cannot be judged."""
    scores = registry.owners()
    chosen = sorted(scores if only is None else scores.keys() & set(only))
    if not scores:
        return []
    # Whoever superseded one of them is an owner of the same host.
    hosts = {owner.partition("|")[0] for owner in chosen}
    facts = registry.facts(o for o in scores if o.partition("|")[0] in hosts)
    # Asked at most once a pass, and not by a worker that has heard everybody lately.
    server_run = cache(lambda: run_id(registry.client))
    if watch is not None:
        now = monotonic()
        silent = {o: watch.silent_for(o, scores[o], now) for o in chosen}
    else:
        intervals = {owner: known.heartbeat_interval for owner, known in facts.items()}
        silences, at = Silences(registry.database), registry.database.server_time()
        silent = {**silences.look(scores, intervals, at, server_run(), keep=keep)}
    here, judged = ProcessImage.current(), []
    near = [known for known in facts.values() if here.same_ground(known.process)]
    for owner in chosen:
        with surviving(f"owner {owner}"):
            known, quiet = facts[owner], silent[owner]
            evidence = local_evidence(known, here, near, quiet)
            missed = MISSED_HEARTBEATS * known.heartbeat_interval
            if evidence.process is None and (quiet or 0.0) >= missed:
                evidence = replace(evidence, connected=registry.connected(known, server_run()))
            judged.append((known, scores[owner], judge(evidence)))
    return judged


def local_evidence(
    facts: Facts, here: ProcessImage, others: Collection[Facts], silent_for: float | None
) -> Evidence:
    """What can be known of an owner without asking the server; ``others`` are of this host."""
    owner, local = facts.process, here.same_ground(facts.process)
    process = look_at(owner.pid, owner.start_time) if local else None
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
        stuck=facts.state == STUCK,
    )
