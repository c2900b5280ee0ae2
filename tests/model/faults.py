"""Each fault at each point of the connections of one process, in scenes; and random walks.

A scene is a list of ``World``'s methods. It is played once without a fault, which counts its
points; then once for each fault at each point. Afterwards what the network held back arrives, the
process settles, and ``World.check`` looks at what is left.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import redis

from model.fault_world import Broken, World
from support.fault_mutants import MUTANTS, Mutant
from support.servers.faulty import POINTS, RAISED, Fault, Faults

SEED = 7

SCENES = {
    "claim, start, finish": """claim reserve reserve start post finish flush
        claim reserve start start finish finish post flush""",
    "a claim that records starts": """claim_to_start deliver start finish
        claim_to_start deliver reserve start start finish flush""",
    "jobs are requeued": """claim reserve requeue flush
        claim deliver start requeue reject flush claim""",
    "jobs with counters": """claim_all close_first claim claim reserve reserve start start
        finish finish post reserve start finish flush""",
    "two channels, of which one closes": """claim reserve start claim reserve start close_first
        claim reserve start finish finish close_second finish flush""",
    "jobs are parked": "claim park park flush claim park reserve start post recall claim flush",
    "runs end in a park": """claim reserve reserve start start postpone flush finish
        claim reserve start close_first close_second postpone post recall claim flush""",
    "a start that was too late": """claim reserve start withdraw_start flush start finish
        claim reserve start close_first close_second withdraw_start flush""",
    "a start that was too late, and none after it": "claim reserve start withdraw_start flush",
    "reaped while jobs run": """claim reserve start start reap register hear
        finish post flush claim start finish flush""",
    "reaped, and heard late": """claim reserve start start reap finish flush register
        claim start finish finish flush hear flush""",
    "the owner registers again, twice": """claim reserve start reap register hear
        claim reserve start reap finish register hear claim reserve start finish flush""",
    "a reconcile": "claim reserve start post reconcile finish flush reconcile",
    "a reconcile after a lost claim": """claim reserve start claim_in_vain claim finish
        reconcile claim reserve start finish flush""",
    "a second check for lost claims": """claim_in_vain reconcile claim_in_vain claim reserve
        start reconcile second_check finish reconcile second_check flush""",
    "pool processes are lost": """claim reserve reserve start start lose_child finish
        claim_all reserve start lose_child flush claim_suspect""",
    "a pool process is lost after the owner": """claim reserve reserve start start reap register
        hear lose_child finish flush""",
    "a pool process is lost, and then the owner": """claim reserve reserve start start lose_child
        reap hear register claim reserve start finish flush""",
    "a claim brings the news that ownership was lost": """claim reserve start reap register
        finish claim_to_start deliver start finish claim_to_start flush""",
    "acks wait for a claim": """claim reserve start finish
        claim reserve reserve start start finish revoke claim flush""",
    "a suspect runs alone": """claim reserve put_on_probation requeue claim_suspect
        start_suspect claim_to_start start finish flush claim_to_start""",
    "a suspect runs alongside others": """claim reserve reserve put_on_probation start
        claim_suspect_alongside reserve start finish finish flush""",
    "runs cut short by a stop": """claim reserve start stop_run
        claim reserve start start stop_run leave""",
    "queues that expire": """claim_all reserve start requeue requeue reject close_first flush
        claim_all park recall""",
    "jobs that landed": "land claim reserve start land land reconcile land claim finish flush",
    "deliveries are interrupted": """claim_all interrupt_delivery reserve start tick finish flush
        claim interrupt_delivery interrupt_delivery close_first tick claim reserve start flush""",
    "the process ends": "claim reserve start claim finish leave",
}

WALK_STEPS = 40
WALK_OPS = [
    *["claim"] * 4, *["reserve"] * 4, *["start"] * 5, *["finish"] * 4, *["post"] * 2,
    "deliver", "revoke", "requeue", "reject", "stop_run", "withdraw_start", "lose_child",
    "close_first", "close_second", "put_on_probation", "claim_suspect", "claim_suspect_alongside",
    "park", "postpone", "recall", "land", "flush", "reconcile", "second_check", "arrive", "reap",
    "register", "hear", "interrupt_delivery", "tick",
]  # fmt: skip
FAULT_CHANCE = 0.25


class Variant(NamedTuple):
    """What else may differ between two runs with one fault at one point."""

    late_before: bool = True  # late commands arrive before the process reconciles
    handler_waits: bool = True  # the signal handler reads the replies to what it sends


VARIANTS = {
    Fault.LATE: (Variant(), Variant(late_before=False)),
    Fault.SLOW: (Variant(), Variant(late_before=False)),
    Fault.SIGNAL: (Variant(), Variant(handler_waits=False)),
    Fault.RAISING: (Variant(), Variant(handler_waits=False)),
}


@dataclass
class Outcome:
    """What some runs have shown."""

    runs: int = 0
    hits: Counter[Fault] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def is_caught(self) -> bool:
        """Whether a mutant was caught. If no scene can be played with it, not even without a fault,
        nothing was tried: the mutant is broken, and its failures show nothing."""
        return bool(self.runs and self.failures)

    def __iadd__(self, other: Outcome) -> Outcome:
        self.runs += other.runs
        self.hits += other.hits
        self.states += other.states
        self.failures += other.failures
        return self


def play(world: World, steps: Iterable[str]) -> Iterator[str]:
    """Do some steps; what a fault raises ends a step. Yield each step, with what it raised."""
    for step in steps:
        raised = ""
        try:
            getattr(world, step)()
        except RAISED as exc:
            raised = f" ({type(exc).__name__})"
        world.states_seen.update(filter(None, map(world.driver.state, world.driver)))
        yield step + raised


def points_of(client: redis.Redis, faults: Faults, title: str) -> list[tuple[Fault, int]]:
    """Play a scene without a fault; return each fault and point (from 1) that it can meet."""
    with World(client, faults, SEED) as world:
        raised = [step for step in play(world, SCENES[title].split()) if "(" in step]
        assert not raised or "claim_in_vain" in SCENES[title], raised
        points = list(faults.points)
        world.settle(late_before=True)
        world.check()
    return [
        (fault, at)
        for fault in Fault
        for at, point in enumerate(points, 1)
        if point in POINTS[fault]
    ]


def scene(client: redis.Redis, faults: Faults, title: str, *, most_failures: int = 10) -> Outcome:
    """Play a scene with each fault at each of its points, until so many failures were found."""
    outcome = Outcome()
    for fault, at in points_of(client, faults, title):
        for variant in VARIANTS.get(fault, (Variant(),)):
            with World(client, faults, SEED) as world:
                faults.arm(fault, at)
                what = f"{title!r}, {fault.name} at point {at}, {variant}"
                _judge(world, SCENES[title].split(), variant, what, outcome)
            if len(outcome.failures) >= most_failures:
                return outcome
    return outcome


def walk(client: redis.Redis, faults: Faults, seed: int) -> Outcome:
    """Do random steps with several faults."""
    outcome, dice = Outcome(), random.Random(seed)
    with World(client, faults, seed) as world:

        def steps() -> Iterator[str]:
            for _ in range(WALK_STEPS):
                if dice.random() < FAULT_CHANCE:
                    faults.arm(dice.choice([*Fault]), dice.randint(1, 6))
                yield dice.choice(WALK_OPS)

        variant = Variant(dice.random() < 0.5, dice.random() < 0.5)
        _judge(world, steps(), variant, f"walk {seed}", outcome)
    return outcome


def _judge(
    world: World, steps: Iterable[str], variant: Variant, what: str, outcome: Outcome
) -> None:
    """Play some steps, let the world settle, and add what came of it to an outcome."""
    done: list[str] = []
    outcome.runs += 1
    try:
        world.handler_waits = variant.handler_waits
        for step in play(world, steps):
            done.append(step)
        world.settle(late_before=variant.late_before)
        world.check()
    except Exception as exc:
        outcome.failures.append(f"{what}: {type(exc).__name__}: {exc}; {' '.join(done)}")
    outcome.hits += world.faults.hits
    outcome.states += world.states_seen


def failures_of(
    client: redis.Redis,
    faults: Faults,
    mutant: Mutant,
    titles: Iterable[str],
    *,
    until_caught: bool,
) -> Outcome:
    """Play some scenes without one mechanism; with ``until_caught`` no further than needed."""
    outcome = Outcome()
    with mutant.in_force():
        for title in titles:
            try:
                outcome += scene(client, faults, title, most_failures=1 if until_caught else 10**9)
            except Exception as exc:
                what = f"{title!r}, without a fault: {type(exc).__name__}: {exc}"
                outcome.failures.append(what)
                # One that breaks no invariant says that the mutant is broken, and not what it does.
                outcome.runs += isinstance(exc, Broken)
            if outcome.is_caught and until_caught:
                break
    return outcome


def report(
    client: redis.Redis, *, walks: int, seed: int, mutants: bool, all_scenes: bool = False
) -> bool:
    """Play all scenes, so many walks and, with ``mutants``, the scenes of each mutant with it, or
    all scenes; print what came of it. Return whether nothing failed that must not, and each mutant
    was caught."""
    faults = Faults(client)
    for mutant in MUTANTS:
        mutant.changed  # noqa: B018 - the tree may be changed while the scenes are played
    print("scene, runs, failures")
    total = Outcome()
    for title in SCENES:
        outcome = scene(client, faults, title)
        print(f"{title}, {outcome.runs}, {len(outcome.failures)}", flush=True)
        total += outcome
    for number in range(seed, seed + walks):
        total += walk(client, faults, number)
    print(f"walks from --seed={seed}, {walks}")
    print(f"{total.runs} runs, {len(total.failures)} failures")
    print(*(f"{count:6} {fault.value}" for fault, count in total.hits.most_common()), sep="\n")
    print(*(f"{count:6} {state}" for state, count in total.states.most_common()), sep="\n")
    print(*total.failures, sep="\n")
    caught = report_mutants(client, faults, MUTANTS if mutants else [], all_scenes=all_scenes)
    return caught and not total.failures


def report_mutants(
    client: redis.Redis, faults: Faults, mutants: Iterable[Mutant], *, all_scenes: bool
) -> bool:
    """Play the scenes of each mutant with it, or all scenes, and print what came of it; return
    whether each was caught."""
    good = True
    for mutant in mutants:
        titles = SCENES if all_scenes else mutant.scenes
        outcome = failures_of(client, faults, mutant, titles, until_caught=False)
        if outcome.runs:
            print(f"without it fail {len(outcome.failures)} of {outcome.runs}: {mutant.what}")
        else:
            print(f"without it no scene can be played, nothing was tried: {mutant.what}")
        sys.stdout.flush()
        good &= outcome.is_caught
    return good
