"""`python -m evidence model`: search all orders of the steps of two processes, two jobs and a
reaper, with the package's scripts on a real server and the package's table of a lease's states.

First each setting is searched with all safeties in place: no state may violate an invariant. Then
each safety is removed once: the search has to find a violation, and prints the shortest trace to
it. A *harm* is a death, a lost reply, a refusal, a closed channel, a stop, or a failover that loses
the last write.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from time import monotonic
from typing import NamedTuple

import redis

from evidence.small.keyspace import Keyspaces
from evidence.small.mutants import (
    CLOSE,
    DEATH,
    FAILOVER,
    LOST_REPLY,
    MUTANTS,
    REFUSAL,
    STOP,
    Mutant,
)
from evidence.small.processes import Harm
from evidence.small.search import Result, search
from evidence.small.world import World
from support.servers.server import Server

#: Strike limit, by whether there is a pill. Without one, deaths are harms, which are fewer than 3.
STRIKE_LIMITS = {True: 2, False: 3}

#: The harms that come from outside and leave the server's data as they are.
ORDINARY = DEATH | LOST_REPLY | REFUSAL

MUTANT_STATES_MAX = 2_000_000  # states after which the search for a removed safety gives up


class Setting(NamedTuple):
    """A world in which no safety is missing."""

    what: str
    harms: int = 0  # how many may come
    kinds: frozenset[Harm] = frozenset()  # of the harms
    pill: bool = False
    publishes_step: bool = False
    plain: bool = False


WORLDS = [
    Setting("two innocent jobs, no harm"),
    Setting("an innocent job and a pill", pill=True),
    Setting("two innocent jobs, a channel is closed or a worker stops", 1, CLOSE | STOP),
    Setting("two plain consumers, a channel is closed", 1, CLOSE, plain=True),
    Setting("two innocent jobs, a failover", 1, FAILOVER),
    Setting("two innocent jobs, one death, lost reply or refusal", 1, ORDINARY),
    Setting(
        "a job that publishes a step; one death or lost reply", 1, ORDINARY, publishes_step=True
    ),
    Setting("two plain consumers, one death or lost reply", 1, ORDINARY, plain=True),
    Setting("two innocent jobs, two closed channels or stops", 2, CLOSE | STOP),
    Setting("two innocent jobs, two harms of any kind", 2, CLOSE | STOP | ORDINARY | FAILOVER),
]


class Worlds:
    """The worlds of settings and of mutants. Worlds with the same scripts share their keyspaces, so
    that each call is made once for each keyspace."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._spaces: dict[int, Keyspaces] = {}  # strike limit -> keyspaces of unchanged scripts

    def of(self, setting: Setting) -> World:
        """Return the world of a setting."""
        world = World(
            self._shared(STRIKE_LIMITS[setting.pill]),
            pill=setting.pill,
            publishes_step=setting.publishes_step,
            plain=setting.plain,
        )
        world.kinds = setting.kinds
        return world

    def without(self, mutant: Mutant) -> World:
        """Return the world in which a safety is missing."""
        limit = mutant.strike_limit or STRIKE_LIMITS[mutant.pill]
        if mutant.script:
            changes = {mutant.script: mutant.changes}
            spaces = Keyspaces(self._client, changes, strike_limit=limit)
        else:
            spaces = self._shared(limit)
        world = World(
            spaces,
            pill=mutant.pill,
            publishes_step=mutant.publishes_step,
            plain=mutant.plain,
            without=mutant.without,
            rows=mutant.rows,
        )
        world.kinds, world.jobs = mutant.kinds, mutant.jobs
        world.processes_are_alike = False
        return world

    def _shared(self, limit: int) -> Keyspaces:
        if limit not in self._spaces:
            self._spaces[limit] = Keyspaces(self._client, {}, strike_limit=limit)
        return self._spaces[limit]

    def search_without(self, mutant: Mutant, most: int) -> Result:
        """Search the world in which a safety is missing, up to ``most`` states."""
        return search(self.without(mutant), mutant.harms, most=most, progress=False)


def main(argv: list[str]) -> int:
    """Search all settings, and the worlds of all removed safeties; print the results. Return 1 if a
    setting violates an invariant, or the removal of a safety was not detected."""
    parser = argparse.ArgumentParser(prog="python -m evidence model", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="time for all settings together")
    parser.add_argument("--seed", help="not used: nothing is random here")
    parser.add_argument(
        "--mutants", help="search only the removed safeties with this in their name"
    )
    options = parser.parse_args(argv)
    with Server(unixsocket=True) as server:
        path = server.options["unixsocket"]
        client = redis.Redis(unix_socket_path=path, socket_timeout=None)
        worlds = Worlds(client)
        holds = bool(options.mutants) or _search_settings(worlds, options.minutes * 60)
        mutants = [one for one in MUTANTS if (options.mutants or "") in one.what]
        detected = _search_mutants(worlds, mutants)
    return 0 if holds and detected else 1


def _search_settings(worlds: Worlds, seconds: float) -> bool:
    """Search all settings; return whether no state violates an invariant. Each search gets its
    share of the time that is left."""
    ends_at, holds = monotonic() + seconds, True
    for number, setting in enumerate(WORLDS):
        world = worlds.of(setting)
        share = (ends_at - monotonic()) / (len(WORLDS) - number)
        result = search(world, setting.harms, seconds=share)
        extent = "all orders" if result.complete else f"all orders of up to {result.depth} steps"
        print(
            f"{setting.what}: {result.states} states, {result.transitions} transitions, "
            f"{result.seconds:.0f} s; {extent}",
            flush=True,
        )
        _print_trace(result)
        holds &= not result.violation
    return holds


def _search_mutants(worlds: Worlds, mutants: Iterable[Mutant]) -> bool:
    """Search the worlds of removed safeties; return whether each removal was detected."""
    detected_count = total = 0
    for mutant in mutants:
        result = worlds.search_without(mutant, MUTANT_STATES_MAX)
        outcome = f"detected in {len(result.trace)} steps" if result.violation else "NOT DETECTED"
        print(f"\n{mutant.what}: {outcome}, {result.states} states, {result.seconds:.0f} s")
        _print_trace(result)
        total += 1
        detected_count += bool(result.violation)
        sys.stdout.flush()
    print(f"\n{detected_count} of {total} removed safeties were detected")
    return detected_count == total


def _print_trace(result: Result) -> None:
    """Print the shortest trace to a violation, if there is one."""
    if result.violation:
        print(*(f"  {number:2} {what}" for number, what in enumerate(result.trace, 1)), sep="\n")
        print(f"  => {result.violation}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
