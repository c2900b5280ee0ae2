"""The small world: its first state, the steps and harms that each state allows, and what must hold
in each state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import calls
from .contents import JOBS, QUEUE, Contents
from .processes import Harm, Processes, Step, is_sent
from .reaping import Reaping
from .state import (
    DECLARED_DEAD,
    IDLE,
    RECONCILE_DUE,
    RECONCILED,
    REGISTERED,
    Process,
    WorldState,
    canonical,
    owner_name,
)


class World(Processes, Reaping):
    """Two processes, two jobs and a reaper.

    ``kinds`` has the kinds of harms that may come.
    """

    jobs: Sequence[str] = tuple(JOBS)  # that are on the queue at the beginning

    #: Of two states that differ only in which process is which, one is searched.
    processes_are_alike = True

    def first(self, harm_count: int) -> WorldState:
        """Return the first state: both processes have just started, and the jobs are on the queue.

        Arguments:
            harm_count: how many harms may come.
        """
        self.spaces.current = self.spaces.number(())
        self.spaces.command("RPUSH", QUEUE, *(JOBS[job] for job in reversed(self.jobs)))
        processes = tuple(Process(owner_name(i, 0)) for i in range(2))
        return WorldState(self.spaces.current, None, False, processes, IDLE, (), harm_count, ())

    def steps(self, state: WorldState) -> Iterator[Step]:
        """Yield all steps from a state, each with the state after it."""
        for step in self._all_steps(state):
            after = step.state
            if step.harm:
                if not self.allows(state, step.harm):
                    continue
                after = after._replace(harms_left=state.harms_left - 1)
            if not self.allows(after, Harm.FAILOVER):
                after = after._replace(replica=None, was_ack=False)
            after = canonical(after, self.spaces, self.processes_are_alike)
            if after != state or step.violation:
                violation = step.violation or self.violation(after)
                yield Step(step.what, after, step.harm, violation)

    def _all_steps(self, state: WorldState) -> Iterator[Step]:
        for i in range(len(state.processes)):
            yield from self.process_steps(state, i)
            if self.allows(state, Harm.DEATH):
                yield from self._deaths(state, i)
        yield from self.reaper_steps(state)
        if self.contents(state).parked:
            after, _ = self.call(state, calls.release)
            yield Step("the parked job is due, and is moved to its queue", after)
        for owner in state.late_reads:
            yield from self._late_read_steps(state, owner)
        if self.allows(state, Harm.FAILOVER) and state.replica is not None:
            what = "a failover: the last write is lost"
            yield Step(what, self._fail_over(state), Harm.FAILOVER)

    def _late_read_steps(self, state: WorldState, owner: str) -> Iterator[Step]:
        """End a blocking read whose process is dead or stalled, with or without a job."""
        left = tuple(other for other in state.late_reads if other != owner)
        yield Step(f"the last blocking read of {owner} ends", state._replace(late_reads=left))
        if self.contents(state).queue:
            after, _ = self.call(state, calls.land, owner)
            after = after._replace(late_reads=left)
            for i, p in enumerate(state.processes):
                if p.owner == owner and p.name_state != DECLARED_DEAD:
                    after = self._put(after, i, has_landed=True)
            yield Step(f"a job lands late for {owner}", after)

    def _deaths(self, state: WorldState, i: int) -> Iterator[Step]:
        """Kill a process, or stall it; also while its blocking read waits at the server."""
        p = state.processes[i]
        if p.name_state != REGISTERED and not p.leases:
            return
        killed = self.end_process(state, i)
        yield Step(f"p{i} is killed", killed, Harm.DEATH)
        reads = tuple(sorted({*state.late_reads, p.owner}))
        # A read of a stalled process began before the stall, and is among the late ones already.
        is_idle = p.name_state == REGISTERED and not (p.needs_reconcile or p.has_landed or p.solo)
        may_read = is_idle and len(p.leases) < 2 and not p.is_stalled
        if may_read:
            after = killed._replace(late_reads=reads)
            yield Step(f"p{i} is killed, and its blocking read stays", after, Harm.DEATH)
        if not p.is_stalled:
            after = self._put(state, i, is_stalled=True)
            yield Step(f"p{i} is cut off from the server", after, Harm.DEATH)
            if may_read:
                after = after._replace(late_reads=reads)
                yield Step(f"p{i} is cut off, and its blocking read stays", after, Harm.DEATH)

    def _fail_over(self, state: WorldState) -> WorldState:
        """Go back to the keyspace before the last write. Each process reconciles."""
        assert state.replica is not None
        now, then = self.contents(state), self.spaces.contents[state.replica]
        processes = []
        for p in state.processes:
            acked: tuple[str, ...] = ()
            if state.was_ack:
                ids_then, ids_now = then.claims.get(p.owner, {}), now.claims.get(p.owner, {})
                acked = tuple(ids_then.keys() - ids_now.keys())
            is_due = p.name_state == REGISTERED and self.without != "reconcile"
            processes.append(
                p._replace(
                    has_permit=False,
                    needs_reconcile=RECONCILE_DUE if is_due else RECONCILED,
                    has_landed=False,
                    recently_acked=acked,
                )
            )
        return state._replace(
            keyspace=state.replica, replica=None, processes=tuple(processes), failed_over=True
        )

    # -- what must hold

    def is_done(self, state: WorldState) -> bool:
        """Return whether each job has ended and is nowhere any more, or is in the dead set."""
        places = self.contents(state).places
        return all(
            places.get(job, ()) == ("the dead set",)
            or (job in state.ended_jobs and job not in places)
            for job in self.jobs
        )

    def violation(self, state: WorldState) -> str:
        """Return which of the design's invariants a state violates; empty: none."""
        found = self.contents(state)
        return (
            self._of_places(state, found)
            or self._of_leases(state, found)
            or self._of_lists(state, found)
            or ("" if state.failed_over else self._of_runs(state, found))
        )

    def _of_places(self, state: WorldState, found: Contents) -> str:
        """Check that each job is in exactly one place, and that no innocent job is dead."""
        for job, places in found.places.items():
            if job not in JOBS:
                return f"{places[0]} has bytes that are no job: {job[:40]}"
            if len(places) > 1 and not state.failed_over:
                return f"{job} is in two places: {places[0]}, {places[1]}"
        for job in self.jobs:
            places = found.places.get(job, ())
            if not places and job not in state.ended_jobs:
                return f"{job} is lost"
            if "the dead set" in places and not (self.pill and job == "B"):
                return f"{job} is dead-lettered, and is innocent"
            if job in found.histories and not places and not state.failed_over:
                return f"{job} is acked, and its history is left"
        return ""

    def _of_leases(self, state: WorldState, found: Contents) -> str:
        """Check that each process has a lease of each of its claims, and that the server knows the
        state of each lease, or is going to be sent it."""
        for i, p in enumerate(state.processes):
            if p.name_state == REGISTERED and not p.needs_reconcile:
                ids = {lease.id for lease in p.leases}
                unknown = [j for id, j in found.claims.get(p.owner, {}).items() if id not in ids]
                if unknown:
                    return f"p{i} has claimed {unknown[0]}, and has no lease of it"
                if p.owner in found.landed and not p.has_landed:
                    return f"a job has landed for p{i}, which does not know of it"
            for lease in p.leases:
                if not is_sent(lease):
                    return (
                        f"{lease.job} is {lease.state.name} in p{i}, and no command is sent for it"
                    )
                if lease.may_start and lease.is_channel_closed:
                    return (
                        f"{lease.job} is {lease.state.name} in p{i}, and its channel is closed: "
                        "its consumer has forgotten it"
                    )
        return ""

    def _of_lists(self, state: WorldState, found: Contents) -> str:
        """Check that a process is going to look at each place where a job waits."""
        for where, jobs in (("probation", found.probation), ("parked", found.parked)):
            if jobs and where not in found.indexed:
                return f"no process looks at the queue list, whose jobs are in: {where}"
        listed = found.owners.keys() | found.tombstones
        for owner in {*found.claims, *found.landed}:
            if found.with_notes.get(owner, frozenset()) - found.claims.get(owner, {}).keys():
                return f"a note of {owner} is left, and its claim is gone"
            if owner not in listed and not state.failed_over:
                return f"no reaper looks at the jobs of {owner}"
        return ""

    def _of_runs(self, state: WorldState, found: Contents) -> str:
        """Check the runs: how often a pill kills, how often a step is published, and that a job
        runs once, and is recorded as running."""
        if self.pill and state.crash_count > max(2, self.spaces.database.config.strike_limit):
            return f"B has killed {state.crash_count} processes"
        if found.step_count > 1:
            return f"A's step was published {found.step_count} times"
        if self.publishes_step and "A" in state.ended_jobs and not found.step_count:
            return "A has ended, and its step was not published"
        leases = [(p, lease) for p in state.processes for lease in p.leases]
        for _, lease in leases:
            if lease.id not in found.claims.get(lease.owner, {}):
                continue
            is_running = lease.id in found.running[lease.owner]
            if lease.has_waiting_note is not None and lease.has_waiting_note is is_running:
                kind = "running" if is_running else "waiting"
                return f"{lease.job} is {lease.state.name}, and is recorded as {kind}"
        if self.plain:  # a plain consumer may run a job whenever it likes
            return ""
        runs = [(p, lease) for p, lease in leases if lease.is_under_way]
        for p, lease in runs:
            others = [other for q, other in runs if q is not p and other.job == lease.job]
            lost = [one for one in (lease, *others) if one.owner in found.marked]
            if others and not lost:
                return f"{lease.job} runs twice at once, and no owner was declared dead"
            is_lost = lease.owner in found.marked
            if not is_lost and lease.id not in found.claims.get(lease.owner, {}):
                return f"{lease.job} runs, and its owner has no claim of it"
            if not is_lost and lease.has_waiting_note is True:
                return f"{lease.job} runs, and its start is not recorded"
        return ""
