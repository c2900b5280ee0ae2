"""Gathers what can be known of owners, for the verdict to judge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from time import monotonic

from redis import Redis

from .config import Config
from .facts import Facts
from .keys import Keys
from .owner import LocalProcess, ProcessImage, look_at
from .registry import Registry, run_id
from .suspects import Suspects
from .verdict import MISSED_HEARTBEATS, Evidence, Verdict, judge
from .watch import Watch


class Jury:
    """Judges the owners of a registry.

    Arguments:
        watch: a watch that is kept by heartbeats; without one, the silence of owners is added
            up over passes in Redis.
    """

    def __init__(self, client: Redis, keys: Keys, config: Config, watch: Watch | None) -> None:
        self.client = client
        self.registry = Registry(client, keys, config)
        self.suspects = Suspects(client, keys, config)
        self.watch = watch
        self.process = ProcessImage.current()

    def judge_all(
        self, only: Collection[str] | None = None, *, keep: bool = False
    ) -> list[tuple[Facts, int, Verdict]]:
        """Every registered owner (or ``only`` some) with its score and verdict.

        Arguments:
            keep: add what is seen to the suspects, where passes add up the silence.
        """
        scores = self.registry.owners()
        chosen = sorted(set(scores) if only is None else set(scores) & set(only))
        if not scores:
            return []
        # Whoever superseded one of them is an owner of the same host.
        hosts = {owner.partition("|")[0] for owner in chosen}
        facts = self.registry.facts(o for o in scores if o.partition("|")[0] in hosts)
        # Asked at most once a pass, and not by a worker that has heard everybody lately.
        server_run = cache(lambda: run_id(self.client))
        silence = self._silence(scores, server_run, keep)
        return [
            (
                facts[owner],
                scores[owner],
                judge(self._evidence(facts[owner], silence(owner), facts, server_run)),
            )
            for owner in chosen
        ]

    def _silence(
        self, scores: Mapping[str, int], server_run: Callable[[], str], keep: bool
    ) -> Callable[[str], float | None]:
        watch = self.watch
        if watch is not None:
            return lambda owner: watch.silent_for(owner, scores[owner], monotonic())
        seen = self.suspects.look(scores, self.registry.server_time(), server_run(), keep=keep)
        return seen.get

    def _evidence(
        self,
        facts: Facts,
        silent_for: float | None,
        others: Mapping[str, Facts],
        server_run: Callable[[], str],
    ) -> Evidence:
        evidence = local_evidence(facts, self.process, others.values(), silent_for)
        missed = MISSED_HEARTBEATS * facts.heartbeat_interval
        quiet = silent_for is not None and silent_for >= missed
        if evidence.process is not None or not quiet:
            return evidence
        return replace(evidence, connected=self.registry.connected(facts, server_run()))


def local_evidence(
    facts: Facts,
    here: ProcessImage,
    others: Collection[Facts],
    silent_for: float | None,
) -> Evidence:
    """What can be known of an owner without asking the server."""
    process: LocalProcess | None = None
    pool_left = False
    superseded = False
    if here.same_ground(facts.process):
        process = look_at(facts.process.pid, facts.process.start_time)
        superseded = _superseded(facts, here, others)
        if process is not LocalProcess.RUNNING:
            pool_left = any(look_at(*child) is LocalProcess.RUNNING for child in facts.pool)
    return Evidence(
        heartbeat_interval=facts.heartbeat_interval,
        owner_ttl=facts.owner_ttl,
        silent_for=silent_for,
        process=process,
        superseded=superseded,
        pool_left=pool_left,
        reaped=facts.state == "reaped",
    )


def _superseded(facts: Facts, here: ProcessImage, others: Collection[Facts]) -> bool:
    """Whether a newer program of the same process exists (HUP): this one, or a registered one."""
    if facts.process.same_process(here) and facts.process.image != here.image:
        return True
    return any(
        other.process.same_process(facts.process)
        and other.process.image != facts.process.image
        and other.registered_at > facts.registered_at
        for other in others
    )
