"""The small world: its first state, what may happen in each, and what must hold there."""

from __future__ import annotations

from collections.abc import Iterator

from . import calls
from .processes import Processes, Step
from .reaping import Reaping
from .seen import JOBS, QUEUE
from .state import IDLE, LEARNED, RUNNING, WAITS, Process, State, name, plain

FAILOVER = "failover, and the last write is lost"


class World(Processes, Reaping):
    #: Whether a failover is one of the harms; and whether there are others.
    failover, others = True, True
    #: Of two states that differ in the names of the processes one is looked at.
    alike = True

    def seen_by_replica(self, before: State, at: int) -> int | None:
        return self._at_before

    def first(self, harms: int) -> State:
        """Both processes have just started, and both jobs wait."""
        self.spaces.at = self.spaces.number(())
        self.spaces.command("RPUSH", QUEUE, *reversed(JOBS.values()))
        processes = tuple(Process(name(i, 0)) for i in range(2))
        return State(self.spaces.at, None, False, processes, IDLE, (), harms, ())

    def steps(self, state: State) -> Iterator[Step]:
        self._at_before = state.at
        for step in self._all_steps(state):
            cost = step.harm
            if cost > state.harms or (step.harm and not self._befalls(step)):
                continue
            after = step.state._replace(harms=state.harms - cost)
            if not after.harms or not self.failover:
                after = after._replace(replica=None, acked=False)
            after = plain(after, self.spaces, self.alike)
            if after != state or step.wrong:
                yield Step(step.what, after, step.harm, step.wrong or self.wrong(after))

    def _befalls(self, step: Step) -> bool:
        return self.failover if step.what == FAILOVER else self.others

    def _all_steps(self, state: State) -> Iterator[Step]:
        for i in range(len(state.processes)):
            yield from self.process_steps(state, i)
            if state.harms:
                yield from self._harms(state, i)
        yield from self.reaper_steps(state)
        if self.seen(state).parked:
            after, _ = self.ask(state, calls.release)
            yield Step("what is due goes to its queue", after)
        for owner in state.reads:
            left = tuple(o for o in state.reads if o != owner)
            yield Step(f"the last read of {owner} is over", state._replace(reads=left))
            if self.seen(state).queue:
                after, _ = self.ask(state, calls.land, owner)
                after = after._replace(reads=left)
                for i, p in enumerate(state.processes):
                    if p.owner == owner and p.left != LEARNED:
                        after = self._put(after, i, landed=True)
                yield Step(f"a job lands late for {owner}", after)
        if state.harms and state.replica is not None:
            yield Step(FAILOVER, self._fails_over(state), harm=True)

    def _harms(self, state: State, i: int) -> Iterator[Step]:
        p = state.processes[i]
        if p.left and not p.jobs:
            return
        killed = self._end_process(state, i)
        yield Step(f"p{i} is killed", killed, harm=True)
        reads = tuple(sorted({*state.reads, p.owner}))
        blocked = not (p.left or p.doubt or p.landed or p.alone) and len(p.jobs) < 2
        if blocked:
            yield Step(f"p{i} is killed, and its read is left", killed._replace(reads=reads), True)
        if not p.stands:
            after = self._put(state, i, stands=True)
            yield Step(f"p{i} is cut off", after, harm=True)
            if blocked:
                yield Step(f"p{i} is cut off in a read", after._replace(reads=reads), harm=True)

    def _fails_over(self, state: State) -> State:
        assert state.replica is not None
        now, then = self.seen(state), self.spaces.seen[state.replica]
        processes = []
        for p in state.processes:
            lately: tuple[str, ...] = ()
            if state.acked:
                lately = tuple(then.held.get(p.owner, {}).keys() - now.held.get(p.owner, {}).keys())
            doubt = 0 if p.left or self.without == "doubt" else 2
            processes.append(p._replace(heard=False, doubt=doubt, landed=False, lately=lately))
        return state._replace(
            at=state.replica, replica=None, processes=tuple(processes), failed_over=True
        )

    # -- what must hold

    def is_done(self, state: State) -> bool:
        """Each job has ended, or is in the dead set, and lies nowhere else."""
        places = self.seen(state).places
        return all(
            places.get(job, ()) == ("dead",) or (job in state.ended and job not in places)
            for job in JOBS
        )

    def wrong(self, state: State) -> str:
        """DESIGN 2, sentence by sentence; empty where it holds."""
        seen, lost_a_write = self.seen(state), state.failed_over
        for name_, places in seen.places.items():
            if name_ not in JOBS:
                return f"bytes that nobody has sent are {places[0]}: {name_[:40]}"
            if len(places) > 1 and not lost_a_write:
                return f"{name_} is in two places: {', '.join(places)}"
        for job in JOBS:
            places = seen.places.get(job, ())
            if not places and job not in state.ended:
                return f"{job} is lost"
            if "dead" in places and not (self.pill and job == "B"):
                return f"{job} is killed, and is innocent"
            if job in seen.counters and not places and not lost_a_write:
                return f"the counters of {job} are left, and it is settled"
        for where, held in (("probation", seen.probation), ("parked", seen.parked)):
            if held and where not in seen.indexed:
                return f"nobody will look at what is {where}"
        for i, p in enumerate(state.processes):
            if not (p.left or p.doubt):
                known = {has.id for has in p.jobs}
                unknown = [j for id, j in seen.held.get(p.owner, {}).items() if id not in known]
                if unknown:
                    return f"p{i} holds {unknown[0]}, and does not know"
                if p.owner in seen.landed and not p.landed:
                    return f"something has landed for p{i}, and it does not know"
        listed = seen.owners.keys() | seen.reaped
        for owner in {*seen.held, *seen.landed}:
            if seen.noted.get(owner, frozenset()) - seen.held.get(owner, {}).keys():
                return f"a note of {owner} has outlived its claim"
            if owner not in listed and not lost_a_write:
                return f"nobody will look at what {owner} holds"
        if lost_a_write:
            return ""
        # One that had neighbours runs twice at least.
        if self.pill and state.crashes > max(2, self.spaces.database.config.strike_limit):
            return f"B has ended {state.crashes} processes"
        if seen.handed_on > 1:
            return f"A's step was handed on {seen.handed_on} times"
        if self.hands_on and "A" in state.ended and not seen.handed_on:
            return "A has ended, and its step is lost"
        for p in state.processes:
            for has in p.jobs:
                if has.how == WAITS and has.id in seen.running.get(has.owner, ()):
                    return f"{has.job} waits, and is recorded as running"
        runs = [(p, has) for p in state.processes for has in p.jobs if has.how in RUNNING]
        for p, has in runs:
            others = [other for q, other in runs if q is not p and other.job == has.job]
            robbed = [one for one in (has, *others) if one.owner in seen.marked]
            if others and not robbed:
                return f"{has.job} runs twice, and nobody was taken for dead"
            if has.owner not in seen.marked and has.id not in seen.running.get(has.owner, ()):
                return f"{has.job} runs, and is not recorded"
        return ""
