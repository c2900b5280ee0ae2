"""`python -m evidence model`: each interleaving of two processes, two jobs and a reaper, on the
real scripts; then each safety taken out once, with the shortest trace to what that breaks.

The replies and keyspaces are a real server's. A state is a keyspace, what the processes and the
reaper know, and how many harms may still come: kill, silence, a lost reply, a failover that loses
the last write. Breadth first, so a trace is the shortest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import NamedTuple

import redis

from evidence.small.keyspace import Changes, Keyspaces
from evidence.small.mutants import MUTANTS, Mutant
from evidence.small.search import Result, search
from evidence.small.world import World
from support.servers.server import Server

#: Strikes of a job: enough to tell them apart where there is a pill; and more than there are harms.
STRIKES = {True: 2, False: 3}


class Sound(NamedTuple):
    """A world in which nothing is missing."""

    what: str
    pill: bool = False
    hands_on: bool = False
    harms: int = 0
    failover: bool = False
    others: bool = False


WORLDS = [
    Sound("two innocent jobs, no harm"),
    Sound("an innocent job and a pill", pill=True),
    Sound(
        "a job that hands on a step, and one kill, silence or lost reply",
        hands_on=True,
        harms=1,
        others=True,
    ),
    Sound("two innocent jobs, a failover", harms=1, failover=True),
    Sound("two innocent jobs, one harm of any other kind", harms=1, others=True),
    Sound("two innocent jobs, two harms of any kind", harms=2, failover=True, others=True),
]


def world(
    client: redis.Redis,
    mutant: Mutant | None = None,
    *,
    pill: bool = False,
    hands_on: bool = False,
) -> World:
    changes: Mapping[str, Changes] = {}
    if mutant is not None and mutant.script:
        changes = {mutant.script: mutant.changes}
    strikes = (mutant and mutant.strikes) or STRIKES[pill]
    spaces = Keyspaces(client, changes, strike_limit=strikes)
    without = mutant.without if mutant else ""
    made = World(spaces, pill=pill, hands_on=hands_on, without=without)
    made.alike = mutant is None
    return made


def caught(client: redis.Redis, mutant: Mutant, most: int) -> Result:
    """What the search finds without one of the safeties."""
    made = world(client, mutant, pill=mutant.pill, hands_on=mutant.hands_on)
    made.failover = not mutant.hands_on  # a lost write may fork, or lose, what it was about
    return search(made, mutant.harms, most=most, progress=False)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m evidence model", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long the sound worlds take")
    parser.add_argument("--seed", help="nothing is random here")
    parser.add_argument("--mutants", help="only those whose name has this in it")
    options = parser.parse_args(argv)
    good = True
    with Server(unixsocket=True) as server:
        path = server.options["unixsocket"]
        client = redis.Redis(unix_socket_path=path, socket_timeout=None)
        if not options.mutants:
            for sound in WORLDS:
                made = world(client, pill=sound.pill, hands_on=sound.hands_on)
                made.failover, made.others = sound.failover, sound.others
                result = search(made, sound.harms, seconds=options.minutes * 60 / len(WORLDS))
                end = "all of them" if result.complete else "as far as time allowed"
                print(
                    f"{sound.what}: {result.states} states, {result.transitions} transitions, "
                    f"depth {result.depth}, {len(made.spaces.rows)} keyspaces, "
                    f"{len(made.spaces.asked)} runs of scripts, {result.seconds:.0f} s; {end}",
                    flush=True,
                )
                good &= _said(result)
        for mutant in MUTANTS:
            if options.mutants and options.mutants not in mutant.what:
                continue
            result = caught(client, mutant, most=2_000_000)
            said = f"caught in {len(result.trace)} steps" if result.wrong else "NOT CAUGHT"
            print(f"\n{mutant.what}: {said}, {result.states} states, {result.seconds:.0f} s")
            _said(result)
            good &= bool(result.wrong)
            sys.stdout.flush()
    return 0 if good else 1


def _said(result: Result) -> bool:
    if result.wrong:
        print(*(f"  {number:2} {what}" for number, what in enumerate(result.trace, 1)), sep="\n")
        print(f"  => {result.wrong}", flush=True)
    return not result.wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
