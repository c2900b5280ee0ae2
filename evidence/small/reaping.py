"""What the reaper may do next, in the order of `Reaper.reap` and `Reaper.drain`."""

from __future__ import annotations

from collections.abc import Iterator

from celery_superfetch.model.job import claim_number
from celery_superfetch.model.verdict import MISSED_HEARTBEATS, Evidence, judge

from . import calls
from .processes import Acts, Step
from .state import IDLE, State


class Reaping(Acts):
    def reaper_steps(self, state: State) -> Iterator[Step]:
        kind, *rest = state.reaper
        yield from getattr(self, f"_{kind.replace(' ', '_')}")(state, *rest)
        if kind != "idle":
            yield Step("the reaper is killed", state._replace(reaper=IDLE), harm=True)

    def _idle(self, state: State) -> Iterator[Step]:
        seen = self.seen(state)
        for owner in seen.owners:
            verdict = judge(self._evidence(state, owner))
            if verdict.dead:
                what = f"the reaper takes {owner} for dead ({verdict.name.lower()})"
                yield Step(what, state._replace(reaper=("mark", owner)))
        for owner in seen.reaped:
            if seen.held.get(owner) or owner in seen.landed:
                reaper = ("return_landed", owner, len(seen.running.get(owner, ())))
                yield Step(f"the reaper looks at {owner} again", state._replace(reaper=reaper))
            elif owner not in state.reads:
                after, _ = self.ask(state, calls.forget, owner)
                yield Step(f"the tombstone of {owner} is forgotten", after)

    def _evidence(self, state: State, owner: str) -> Evidence:
        config = self.spaces.database.config
        times = config.heartbeat_interval, config.owner_ttl
        for process in state.processes:
            if process.owner == owner:
                silent = not process.heard or (self.without == "watched" and process.stands)
                return Evidence(*times, staleness_s=config.owner_ttl if silent else 0.0)
        staleness_s = MISSED_HEARTBEATS * config.heartbeat_interval
        return Evidence(*times, staleness_s=staleness_s, connected=False)

    def _mark(self, state: State, owner: str) -> Iterator[Step]:
        after, ran = self.ask(state, calls.mark, owner)
        if ran is None:
            yield Step(f"its mark of {owner} comes too late", after._replace(reaper=IDLE))
            return
        heard = any(p.owner == owner and p.heard for p in state.processes)
        wrong = f"{owner} is robbed: the server hears it" if heard and not state.failed_over else ""
        what = f"the reaper marks {owner}"
        yield Step(what, after._replace(reaper=("return_landed", owner, ran)), wrong=wrong)

    def _return_landed(self, state: State, owner: str, ran: int) -> Iterator[Step]:
        after, _ = self.ask(state, calls.return_landed, owner)
        what = f"the reaper gives back what landed for {owner}"
        yield Step(what, after._replace(reaper=("read", owner, ran)))

    def _read(self, state: State, owner: str, ran: int) -> Iterator[Step]:
        seen = self.seen(state)
        claims = sorted(seen.held.get(owner, {}), key=claim_number, reverse=True)
        running = tuple(sorted(seen.running.get(owner, ())))
        reaper = ("count", owner, ran, tuple(claims), running) if claims else IDLE
        what = f"the reaper reads what {owner} held"
        yield Step(what, state._replace(reaper=reaper))

    def _count(
        self, state: State, owner: str, ran: int, claims: tuple, running: tuple
    ) -> Iterator[Step]:
        held = self.seen(state).held.get(owner, {})
        there = [(id, held[id]) for id in claims if id in held]
        _, counters = self.spaces.do(state.at, calls.counters, tuple(name for _, name in there))
        found = tuple((*one, *known) for one, known in zip(there, counters, strict=True))
        reaper = ("move", owner, ran, found, running, ()) if found else ("last", owner)
        what = f"the reaper reads the counters of {', '.join(name for _, name in there) or 'none'}"
        yield Step(what, state._replace(reaper=reaper))

    def _move(
        self, state: State, owner: str, ran: int, found: tuple, running: tuple, again: tuple
    ) -> Iterator[Step]:
        """Kills go first, each by a script of its own; all that are recovered, by one."""
        deadly = [one for one in found if self._kills(owner, one, running, ran)]
        marked = owner in self.seen(state).marked
        if deadly:
            first = deadly[0]
            after, outcome = self.ask(state, calls.kill, owner, first, running, ran)
            left, outcomes = tuple(one for one in found if one != first), [(first, outcome)]
        else:
            after, replies = self.ask(state, calls.recover, owner, found, running, ran)
            left, outcomes = (), [*zip(found, replies, strict=True)]
        again += tuple(one[0] for one, outcome in outcomes if outcome == "recounted")
        said = ", ".join(f"{one[1]} {outcome}" for one, outcome in outcomes)
        what = f"the reaper {'kills' if deadly else 'recovers'}: {said}"
        moved = any(outcome == "ok" for _, outcome in outcomes)
        wrong = f"{owner}, that nobody has marked, is robbed" if moved and not marked else ""
        if left:
            reaper = ("move", owner, ran, left, running, again)
        elif again:
            reaper = ("count", owner, ran, again, running)
        else:
            reaper = ("last", owner)
        yield Step(what, after._replace(reaper=reaper), wrong=wrong)

    def _kills(self, owner: str, found: tuple, running: tuple, ran: int) -> bool:
        if self.without == "guard":
            return False
        _, kills = self.spaces.do(0, calls.decided, owner, found, running, ran)
        return kills

    def _last(self, state: State, owner: str) -> Iterator[Step]:
        after, _ = self.ask(state, calls.return_landed, owner)
        yield Step(f"the reaper has done with {owner}", after._replace(reaper=IDLE))
