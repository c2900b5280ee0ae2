"""What a process may do next: each server call, each thing in its memory, each harm, for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import calls
from .keyspace import Keyspaces
from .seen import Seen
from .state import (
    BACK,
    ENDED,
    HANDED_ON,
    LEARNED,
    RECORDED,
    RUNNING,
    RUNS,
    TWICE,
    UNLANDED,
    WAITS,
    Has,
    Process,
    State,
    known_numbers,
    next_birth,
)

MOST = 2  # jobs that a process has at a time


class Step(NamedTuple):
    what: str
    state: State
    harm: bool = False
    wrong: str = ""


class Acts:
    """What all who act here need.

    Arguments:
        pill: job B kills whoever runs it.
        hands_on: job A hands on a step before it ends.
        without: the safety that is taken out of what processes do.
    """

    def __init__(
        self,
        spaces: Keyspaces,
        *,
        pill: bool = False,
        hands_on: bool = False,
        without: str = "",
    ) -> None:
        self.spaces, self.pill, self.hands_on, self.without = spaces, pill, hands_on, without
        spaces.blames_all = without == "company"

    def seen(self, state: State) -> Seen:
        return self.spaces.seen[state.at]

    def ask(
        self, state: State, act: Callable[..., Any], *params: Any, number: int = 1, other: int = 1
    ) -> tuple[State, Any]:
        """What becomes of it at the server, and the reply."""
        self.spaces.lists.number, self.spaces.other_score = number, other
        at, reply = self.spaces.do(state.at, act, *params)
        if at != state.at:
            state = state._replace(at=at)
            if not state.failed_over:
                state = state._replace(
                    replica=self.seen_by_replica(state, at), acked=act is calls.ack
                )
        return state, reply

    def seen_by_replica(self, before: State, at: int) -> int | None:
        raise NotImplementedError


class Processes(Acts):
    def process_steps(self, state: State, i: int) -> Iterator[Step]:
        p = state.processes[i]
        yield from self._in_memory(state, i, p)
        if p.stands:
            return
        if p.left:
            yield from self._as_nobody(state, i, p)
        else:
            yield from self._as_owner(state, i, p)
        for has in p.jobs:
            yield from self._with_job(state, i, p, has)

    def _put(self, state: State, i: int, **changes: Any) -> State:
        processes = list(state.processes)
        processes[i] = processes[i]._replace(**changes)
        return state._replace(processes=tuple(processes))

    def _put_job(
        self, state: State, i: int, old: Has | None, new: Has | None, **more: Any
    ) -> State:
        jobs = [has for has in state.processes[i].jobs if has != old] + ([new] if new else [])
        if new is None and old is not None and state.processes[i].alone == old.id:
            more["alone"] = ""
        return self._put(state, i, jobs=tuple(sorted(jobs)), **more)

    # -- in its memory

    def _in_memory(self, state: State, i: int, p: Process) -> Iterator[Step]:
        who = f"p{i}"
        if p.stands:
            yield Step(f"{who} is heard again", self._put(state, i, stands=False))
            if p.heard:
                yield Step(f"{who} has been silent too long", self._put(state, i, heard=False))
        for has in p.jobs:
            if self._may_begin(p, has):
                marked = has.owner in self.seen(state).marked and not state.failed_over
                wrong = f"{who}, taken for dead, starts {has.job}" if marked else ""
                after, early = state, self.without == "late ack"
                if early:
                    after, _ = self.ask(state, calls.ack, has.owner, has.id, has.job, has.counted)
                after = self._put_job(after, i, has, has._replace(how=RUNS))
                yield Step(f"{who} starts {has.job}", after, wrong=wrong)
            if has.how == RUNS and self.pill and has.job == "B":
                count = state.crashes + (has.owner not in self.seen(state).marked)
                after = self._end_process(state, i)._replace(crashes=count)
                yield Step(f"{who} is killed by its job B", after)
            elif has.how in RUNNING and (has.how == HANDED_ON or not self._hands_on(has)):
                ended = tuple(sorted({*state.ended, has.job}))
                new = None if self.without == "late ack" else has._replace(how=ENDED)
                after = self._put_job(state, i, has, new)._replace(ended=ended)
                yield Step(f"{who} ends {has.job}", after)

    def _hands_on(self, has: Has) -> bool:
        return self.hands_on and has.job == "A"

    def _may_begin(self, p: Process, has: Has) -> bool:
        if (p.left and self.without != "given back") or p.alone not in ("", has.id):
            return False
        if p.alone and any(other.how in RUNNING for other in p.jobs):
            return False
        permitted = p.heard or self.without == "permit"
        how = (WAITS, RECORDED) if self.without == "record" else (RECORDED,)
        return has.how in how and permitted and not p.doubt

    def _end_process(self, state: State, i: int) -> State:
        """Its supervisor starts another."""
        processes = list(state.processes)
        processes[i] = Process(next_birth(state, self.spaces, i))
        return state._replace(processes=tuple(processes))

    # -- while it is no owner

    def _as_nobody(self, state: State, i: int, p: Process) -> Iterator[Step]:
        if p.left == UNLANDED:
            after, status = self.ask(state, calls.register, p.owner)
            if status == "ok":
                yield Step(f"p{i} registers", self._put(after, i, left="", heard=True))
        elif not any(has.how == BACK for has in p.jobs):
            after, _ = self.ask(state, calls.return_landed, p.owner)
            after = self._put(
                after, i, left=UNLANDED, landed=False, owner=next_birth(after, self.spaces, i)
            )
            yield Step(f"p{i} gives back what landed, and takes a new name", after)

    # -- while it is one

    def _as_owner(self, state: State, i: int, p: Process) -> Iterator[Step]:
        who, seen = f"p{i}", self.seen(state)
        about = state.reaper[:2] == ("mark", p.owner)
        after, status = self.ask(state, calls.heartbeat, p.owner, other=1 + about)
        yield Step(f"{who} sends a heartbeat: {status}", self._heard(after, i, p, status))
        if p.doubt and p.heard:
            yield self._looks(state, i, p)
        if p.doubt or p.alone:
            return
        if p.landed:
            after, _ = self.ask(state, calls.return_landed, p.owner)
            yield Step(f"{who} gives back what landed", self._put(after, i, landed=False))
        if len(p.jobs) >= MOST or any(has.how == BACK for has in p.jobs):
            return
        numbers = known_numbers(state, self.spaces, p.owner)
        number = 1 if self.without == "numbers" else max(numbers, default=0) + 1
        names_landed = p.landed and self.without != "landed"
        for starts in (0, 1):
            after, found = self.ask(
                state, calls.claim, p.owner, names_landed, starts, number=number
            )
            if not found:
                continue
            id, job, counted = found
            after = self._put(after, i, landed=False)
            how = RECORDED if starts else WAITS
            has = Has(p.owner, id, job, how, counted)
            yield Step(
                f"{who} claims {job}{' to start it' * starts}", self._put_job(after, i, None, has)
            )
            if not self.seen(state).landed:
                yield self._lost(after, i, f"{who}'s claim of {job}")
        # What waits to be settled goes before it, by the same connection.
        if seen.probation and all(has.how == WAITS for has in p.jobs):
            after, found = self.ask(state, calls.claim_alone, p.owner, number=number)
            if found:
                id, job, counted = found
                has = Has(p.owner, id, job, RECORDED, counted)
                ready = self._put_job(after, i, None, has, alone=id)
                yield Step(f"{who} claims the suspect {job}", ready)
                yield self._lost(after, i, f"{who}'s claim of the suspect {job}")
        if seen.queue and p.heard and not p.landed and p.owner not in state.reads:
            after, _ = self.ask(state, calls.land, p.owner)
            yield Step(f"{seen.queue[-1]} lands for {who}", self._put(after, i, landed=True))
            yield self._lost(after, i, f"{who}'s read")

    def _heard(self, state: State, i: int, p: Process, status: str) -> State:
        if status == "ok":
            return self._put(state, i, heard=True)
        if status == "reaped":
            jobs = tuple(
                has._replace(how=BACK)
                if has.how in (WAITS, RECORDED) and self.without != "given back"
                else has
                for has in p.jobs
            )
            return self._put(state, i, heard=False, left=LEARNED, doubt=0, alone="", jobs=jobs)
        return self._put(state, i, heard=False, left=UNLANDED)

    def _lost(self, state: State, i: int, what: str) -> Step:
        doubt = 0 if self.without == "doubt" else 2
        return Step(f"the reply to {what} is lost", self._put(state, i, doubt=doubt), harm=True)

    def _looks(self, state: State, i: int, p: Process) -> Step:
        """It looks for what a lost reply spoke of."""
        if p.doubt == 2:
            after, _ = self.ask(state, calls.return_landed, p.owner)
            after = self._put(after, i, doubt=1, landed=False)
            return Step(f"p{i}, in doubt, gives back what may have landed", after)
        jobs, known = list(p.jobs), {has.id for has in p.jobs if has.owner == p.owner}
        for id, job in self.seen(state).held.get(p.owner, {}).items():
            if id not in known:
                jobs.append(Has(p.owner, id, job, ENDED if id in p.lately else BACK, True))
        after = self._put(state, i, doubt=0, jobs=tuple(sorted(jobs)), lately=())
        return Step(f"p{i} reads what it holds", after)

    # -- with a job

    def _with_job(self, state: State, i: int, p: Process, has: Has) -> Iterator[Step]:
        who, params = f"p{i}", (has.owner, has.id, has.job)
        if has.how == WAITS and not p.left and p.alone in ("", has.id) and p.heard and not p.doubt:
            after, _ = self.ask(state, calls.record, *params)
            ready = self._put_job(after, i, has, has._replace(how=RECORDED))
            yield Step(f"{who} records {has.job} as running", ready)
        if has.how == BACK or (has.how == WAITS and not p.left):
            after, _ = self.ask(state, calls.requeue, *params)
            yield Step(f"{who} gives {has.job} back", self._put_job(after, i, has, None))
            back = self._put_job(after, i, has, has._replace(how=BACK))
            if not p.left:
                yield self._lost(back, i, f"{who}'s requeue of {has.job}")
        if has.how == WAITS and not p.left and has.job == "A":
            after, _ = self.ask(state, calls.park, *params)
            after = self._put_job(after, i, has, None)
            yield Step(f"{who} parks {has.job}", after)
            yield self._lost(after, i, f"{who}'s parking of {has.job}")
        if has.how == RUNS and self._hands_on(has):
            after, reply = self.ask(state, calls.hand_on, has.owner, has.id)
            # One whose claim is over hands on nothing, and its end is no end of the job.
            how, said = (ENDED, ", too late") if reply < 0 else (HANDED_ON, "")
            ready = self._put_job(after, i, has, has._replace(how=how))
            yield Step(f"{who} hands on the step of {has.job}{said}", ready)
            yield Step(f"the reply to {who}'s step is lost", after, harm=True)
        if has.how in (ENDED, TWICE):
            yield from self._acks(state, i, p, has)

    def _acks(self, state: State, i: int, p: Process, has: Has) -> Iterator[Step]:
        there = self.seen(state).held.get(has.owner, {}).get(has.id)
        after, found = self.ask(state, calls.ack, has.owner, has.id, has.job, has.counted)
        wrong = ""
        if found and there != has.job:
            wrong = f"the ack of {has.job} has settled {there}"
        elif has.id in self.seen(after).held.get(has.owner, {}):
            wrong = f"the ack of {has.job} has left it where it was"
        elif found != (there is not None):
            wrong = f"the ack of {has.job} says that it was {'there' if found else 'gone'}"
        said = "" if found else ", which was gone"
        yield Step(f"p{i} acks {has.job}{said}", self._put_job(after, i, has, None), wrong=wrong)
        if has.how == ENDED:
            again = self._put_job(after, i, has, has._replace(how=TWICE))
            what = f"the reply to p{i}'s ack of {has.job} is lost"
            yield Step(what, again, harm=True, wrong=wrong)
