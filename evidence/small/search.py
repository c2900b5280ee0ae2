"""Breadth first through all states: the shortest trace to what must not be, or none."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from time import monotonic

from .keyspace import ScriptError
from .state import State
from .world import World


@dataclass
class Result:
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    wrong: str = ""
    trace: list[str] = field(default_factory=list)
    complete: bool = True  # False: it was told to go no further


def search(
    world: World,
    harms: int,
    *,
    deepest: float = math.inf,
    most: float = math.inf,
    seconds: float = math.inf,
    progress: bool = True,
) -> Result:
    """Look at all states that can be reached, with so many harms at most.

    Arguments:
        deepest, most, seconds: steps, states and time after which it is enough.
        progress: look, too, whether each state can be led to a good end without another harm.
    """
    result, began = Result(), monotonic()
    first = world.first(harms)
    number: dict[State, int] = {first: 0}
    came: list[tuple[int, str]] = [(-1, "")]
    depth = [0]
    back: list[list[int]] = [[]]  # whence each can be reached without a harm
    done: list[int] = []
    waiting = deque([first])
    while waiting and not result.wrong:
        state = waiting.popleft()
        at = number[state]
        result.depth = depth[at]
        if progress and world.is_done(state):
            done.append(at)
        if depth[at] >= deepest or len(came) >= most or monotonic() - began >= seconds:
            result.complete = False
            continue
        try:
            for step in world.steps(state):
                result.transitions += 1
                to = number.get(step.state)
                if to is None:
                    to = number[step.state] = len(came)
                    came.append((at, step.what))
                    depth.append(depth[at] + 1)
                    back.append([])
                    waiting.append(step.state)
                if not step.harm:
                    back[to].append(at)
                if step.wrong:
                    result.wrong = step.wrong
                    result.trace = [*_trace(came, at), step.what]
                    break
        except ScriptError as exc:
            result.wrong, result.trace = f"a script fails: {exc}", _trace(came, at)
    result.states = len(came)
    if progress and result.complete and not result.wrong:
        stuck = _stuck(back, done)
        if stuck is not None:
            result.wrong = "from here on no job ends, whatever is done"
            result.trace = _trace(came, stuck)
    result.seconds = monotonic() - began
    return result


def _trace(came: list[tuple[int, str]], at: int) -> list[str]:
    trace = []
    while at > 0:
        at, what = came[at]
        trace.append(what)
    return trace[::-1]


def _stuck(back: list[list[int]], done: list[int]) -> int | None:
    """The first state from which no good end can be reached."""
    good = bytearray(len(back))
    waiting = list(done)
    for at in done:
        good[at] = 1
    while waiting:
        for before in back[waiting.pop()]:
            if not good[before]:
                good[before] = 1
                waiting.append(before)
    return good.find(0) if 0 in good else None
