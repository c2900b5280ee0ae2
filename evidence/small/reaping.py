"""The steps of the reaper, in the order of the package's ``Reaper`` and ``OwnerDrain``.

``WorldState.reaper`` has the name of the next step and its arguments: the owner, how many of its
jobs ran at the mark (``ran``), and what was read. The method with that name makes the step.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_superfetch.model.job import claim_number
from celery_superfetch.model.verdict import MISSED_HEARTBEATS, Evidence, judge

from . import calls
from .processes import Actor, Harm, Step
from .state import IDLE, WorldState


class Reaping(Actor):
    """The steps of the reaper."""

    def reaper_steps(self, state: WorldState) -> Iterator[Step]:
        """Yield all steps that the reaper can make next."""
        kind, *rest = state.reaper
        yield from getattr(self, f"_{kind}")(state, *rest)
        if kind != "idle" and self.allows(state, Harm.DEATH):
            yield Step("the reaper is killed", state._replace(reaper=IDLE), Harm.DEATH)

    def _idle(self, state: WorldState) -> Iterator[Step]:
        found = self.contents(state)
        for owner in found.owners:
            verdict = judge(self._evidence(state, owner))
            if verdict.dead:
                what = f"the reaper declares {owner} dead ({verdict.name.lower()})"
                yield Step(what, state._replace(reaper=("mark", owner)))
        for owner in found.tombstones:
            if found.claims.get(owner) or owner in found.landed:
                reaper = ("return_landed", owner, len(found.running.get(owner, ())))
                yield Step(f"the reaper drains {owner} again", state._replace(reaper=reaper))
            elif owner not in state.late_reads:
                after, _ = self.call(state, calls.drop_tombstone, owner)
                yield Step(f"the tombstone of {owner} is dropped", after)

    def _evidence(self, state: WorldState, owner: str) -> Evidence:
        """Return the evidence of an observer on another host: whether the owner is connected, and
        for how long it has sent no heartbeat."""
        config = self.spaces.database.config
        times = config.heartbeat_interval, config.owner_ttl
        for process in state.processes:
            if process.owner == owner:
                is_silent = not process.has_permit or (
                    self.without == "watched staleness" and process.is_stalled
                )
                return Evidence(*times, staleness_s=config.owner_ttl if is_silent else 0.0)
        staleness_s = MISSED_HEARTBEATS * config.heartbeat_interval
        return Evidence(*times, staleness_s=staleness_s, connected=False)

    def _mark(self, state: WorldState, owner: str) -> Iterator[Step]:
        after, ran = self.call(state, calls.mark, owner)
        if ran is None:
            what = f"{owner} has sent a heartbeat meanwhile: the reaper does not mark it"
            yield Step(what, after._replace(reaper=IDLE))
            return
        is_alive = any(p.owner == owner and p.has_permit for p in state.processes)
        violation = ""
        if is_alive and not state.failed_over:
            violation = f"{owner} is declared dead although its heartbeats arrive"
        what = f"the reaper marks {owner}"
        reaper = ("return_landed", owner, ran)
        yield Step(what, after._replace(reaper=reaper), violation=violation)

    def _return_landed(self, state: WorldState, owner: str, ran: int) -> Iterator[Step]:
        after, _ = self.call(state, calls.return_landed, owner)
        what = f"the reaper requeues what has landed for {owner}"
        yield Step(what, after._replace(reaper=("read", owner, ran)))

    def _read(self, state: WorldState, owner: str, ran: int) -> Iterator[Step]:
        found = self.contents(state)
        claims = sorted(found.claims.get(owner, {}), key=claim_number, reverse=True)
        running = tuple(sorted(found.running.get(owner, ())))
        reaper = ("count", owner, ran, tuple(claims), running) if claims else IDLE
        what = f"the reaper reads the claims of {owner}"
        yield Step(what, state._replace(reaper=reaper))

    def _count(
        self, state: WorldState, owner: str, ran: int, claims: tuple, running: tuple
    ) -> Iterator[Step]:
        """Read the counters of the jobs that are still there."""
        in_list = self.contents(state).claims.get(owner, {})
        there = [(id, in_list[id]) for id in claims if id in in_list]
        jobs = tuple(job for _, job in there)
        _, counters = self.spaces.call(state.keyspace, calls.counters, jobs)
        found = tuple((*one, *counted) for one, counted in zip(there, counters, strict=True))
        reaper = ("move", owner, ran, found, running, ()) if found else ("last", owner)
        what = f"the reaper reads the counters of {', '.join(jobs) or 'no job'}"
        yield Step(what, state._replace(reaper=reaper))

    def _move(
        self,
        state: WorldState,
        owner: str,
        ran: int,
        found: tuple,
        running: tuple,
        recounted: tuple,
    ) -> Iterator[Step]:
        """Dead-letter the next job that is over its limit, by a script of its own; when there is
        none, recover all others by one script."""
        is_marked = owner in self.contents(state).marked
        death = calls.Death(running, ran, all_exact=self.without == "suspect strikes")
        deadly = [one for one in found if self._is_over_limit(owner, one, death)]
        if deadly:
            first = deadly[0]
            after, outcome = self.call(state, calls.kill, owner, first, death)
            left, outcomes = tuple(one for one in found if one != first), [(first, outcome)]
        else:
            after, replies = self.call(state, calls.recover, owner, found, death)
            left, outcomes = (), [*zip(found, replies, strict=True)]
        recounted += tuple(one[0] for one, outcome in outcomes if outcome == "recounted")
        results = ", ".join(f"{one[1]} ({outcome})" for one, outcome in outcomes)
        what = f"the reaper {'dead-letters' if deadly else 'recovers'} {results}"
        has_moved = any(outcome == "ok" for _, outcome in outcomes)
        violation = ""
        if has_moved and not is_marked:
            violation = f"{owner} loses a job, and was not marked"
        if left:
            reaper = ("move", owner, ran, left, running, recounted)
        elif recounted:
            reaper = ("count", owner, ran, recounted, running)
        else:
            reaper = ("last", owner)
        yield Step(what, after._replace(reaper=reaper), violation=violation)

    def _is_over_limit(self, owner: str, found: tuple, death: calls.Death) -> bool:
        if self.without == "guard":
            return False
        _, is_kill = self.spaces.call(0, calls.is_kill, owner, found, death)
        return is_kill

    def _last(self, state: WorldState, owner: str) -> Iterator[Step]:
        after, _ = self.call(state, calls.return_landed, owner)
        what = f"the reaper ends its pass over {owner}"
        yield Step(what, after._replace(reaper=IDLE))
