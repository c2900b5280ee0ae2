"""Every crash point, counted: a job's process, its worker or its connection ends before and after
each command that it sends from the job's start until its workflow has ended.

`shapes.py` says beforehand what is allowed. `lane.py` and `proxy.py` do the harm, `history.py`
keeps what happened, and `verdict.py` judges by that alone.
"""

from __future__ import annotations

import argparse
import platform
import time
from importlib.metadata import version
from pathlib import Path

from ..history import History, read
from .points import Run
from .report import summary
from .series import all_series
from .shapes import HARMS, MOMENTS, POOLS, SHAPES


def main(argv: list[str]) -> int:
    """Run the points, print the verdict, and exit with 0 if ours has no trouble."""
    parser = argparse.ArgumentParser(prog="python -m evidence crash-points", description=__doc__)
    parser.add_argument("--minutes", type=float, help="only as much as fits, in a random order")
    parser.add_argument("--seed", type=int, default=1, help="of that order")
    parser.add_argument("--sides", nargs="+", default=["ours"], choices=["ours", "stock"])
    parser.add_argument("--pools", nargs="+", default=POOLS, choices=POOLS)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--harms", nargs="+", default=HARMS, choices=HARMS)
    parser.add_argument("--moments", nargs="+", default=MOMENTS, choices=MOMENTS)
    parser.add_argument("--lanes", type=int, default=2, help="how many points at a time")
    parser.add_argument("--without", default="", help="safeties of ours to take out, as a control")
    parser.add_argument("--history", type=Path, help="where the lines go (default: a new file)")
    parser.add_argument("--judge", type=Path, help="run nothing; judge this history")
    options = parser.parse_args(argv)
    if options.judge:
        return summary(read(options.judge), print)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    history = History(options.history or Path(f"evidence-crash-points-{stamp}.jsonl"))
    packages = ("celery", "kombu", "redis", "celery-superfetch")
    versions = {name: version(name) for name in packages}
    history.write("run", python=platform.python_version(), **versions, argv=argv)
    series = all_series(
        options.sides, options.pools, options.shapes, options.harms, options.moments
    )
    run = Run(
        series,
        history,
        lanes=options.lanes,
        minutes=options.minutes,
        seed=options.seed,
        without=options.without,
        say=lambda line: print(line, flush=True),
    )
    try:
        run.run()
    finally:
        digest = history.close()
        print(f"history: {history.path}.gz, SHA-256 of its lines {digest}")
    return summary(read(history.path), print)
