"""Try every crash point: kill a job's process or its worker, or cut its connection, before and
after each command that it sends, from the start of the job to the end of its workflow.

`python -m evidence crash-points` runs it. `shapes.py` says beforehand which outcomes are allowed,
`lane.py` and `proxy.py` do the harms, `history.py` writes what happened, and `verdict.py` judges
the history alone. If the program is killed, its workers and servers end with it, and the history
has all points until then: `--judge` judges them.
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
    """Run the points, print the verdict, and return the exit code (0: the package has no
    trouble)."""
    parser = argparse.ArgumentParser(prog="python -m evidence crash-points", description=__doc__)
    parser.add_argument("--minutes", type=float, help="run what fits, in a random order")
    parser.add_argument("--seed", type=int, default=1, help="seed of that order")
    parser.add_argument("--sides", nargs="+", default=["ours"], choices=["ours", "stock"])
    parser.add_argument("--pools", nargs="+", default=POOLS, choices=POOLS)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--harms", nargs="+", default=HARMS, choices=HARMS)
    parser.add_argument("--moments", nargs="+", default=MOMENTS, choices=MOMENTS)
    parser.add_argument("--lanes", type=int, default=2, help="points at the same time")
    parser.add_argument(
        "--without", default="", help="safeties of the package to remove, as a control"
    )
    parser.add_argument("--history", type=Path, help="file of the history (default: a new file)")
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
