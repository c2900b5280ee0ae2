"""Search all states breadth first, so that the trace to a violation is the shortest."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from time import monotonic

from .keyspace import ScriptError
from .state import WorldState
from .world import World


@dataclass
class Result:
    """The result of a search."""

    states: int = 0
    transitions: int = 0
    depth: int = 0  # all states that can be reached in so many steps were checked
    seconds: float = 0.0
    violation: str = ""  # the first that was found; empty: none
    trace: list[str] = field(default_factory=list)  # the steps that lead to it
    complete: bool = True  # False: a limit ended the search


def search(
    world: World,
    harm_count: int,
    *,
    deepest: float = math.inf,
    most: float = math.inf,
    seconds: float = math.inf,
    progress: bool = True,
) -> Result:
    """Search the states that can be reached with at most ``harm_count`` harms.

    Arguments:
        deepest, most, seconds: limits of the number of steps, of the number of states, and of the
            time. None of the three: the search is complete.
        progress: also check that all jobs can still end from each state, without a further harm.
            An incomplete search cannot check that.
    """
    result, began = Result(), monotonic()
    first = world.first(harm_count)
    numbers: dict[WorldState, int] = {first: 0}
    came_by: list[tuple[int, str]] = [(-1, "")]  # of each state: the state before, and the step
    depths = [0]
    sources: list[list[int]] = [[]]  # of each state: the states that lead to it without a harm
    done: list[int] = []
    waiting = deque([first])
    while waiting and not result.violation:
        state = waiting.popleft()
        at = numbers[state]
        result.depth = depths[at]
        if progress and world.is_done(state):
            done.append(at)
        if depths[at] >= deepest or len(came_by) >= most or monotonic() - began >= seconds:
            result.complete = False
            break
        try:
            for step in world.steps(state):
                result.transitions += 1
                to = numbers.get(step.state)
                if to is None:
                    to = numbers[step.state] = len(came_by)
                    came_by.append((at, step.what))
                    depths.append(depths[at] + 1)
                    sources.append([])
                    waiting.append(step.state)
                if not step.harm:
                    sources[to].append(at)
                if step.violation:
                    result.violation = step.violation
                    result.trace = [*_trace(came_by, at), step.what]
                    break
        except ScriptError as exc:
            result.violation, result.trace = (
                f"the script of the next step fails: {exc}",
                _trace(came_by, at),
            )
    result.states = len(came_by)
    if progress and result.complete and not result.violation:
        stuck = _stuck(sources, done)
        if stuck is not None:
            result.violation = "from here on no step leads to the end of all jobs"
            result.trace = _trace(came_by, stuck)
    result.seconds = monotonic() - began
    return result


def _trace(came_by: list[tuple[int, str]], at: int) -> list[str]:
    """Return the steps that lead to a state."""
    trace = []
    while at > 0:
        at, what = came_by[at]
        trace.append(what)
    return trace[::-1]


def _stuck(sources: list[list[int]], done: list[int]) -> int | None:
    """Return the first state from which no state with all jobs done can be reached."""
    reaches_end = bytearray(len(sources))
    waiting = list(done)
    for at in done:
        reaches_end[at] = 1
    while waiting:
        for before in sources[waiting.pop()]:
            if not reaches_end[before]:
                reaches_end[before] = 1
                waiting.append(before)
    return reaches_end.find(0) if 0 in reaches_end else None
