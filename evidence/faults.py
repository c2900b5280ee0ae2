"""Play scenes of one process with jobs in flight, with each fault at each point where it uses its
connections; then random walks with several faults. Then remove each mechanism of the package, one
at a time, and play the scenes that have to fail without it.

`python -m evidence faults` runs it. The Redis server and the scripts are real.
`tests/model/faults.py` has the scenes and the invariants. If the program is killed, nothing is
lost: run it again.
"""

from __future__ import annotations

import argparse
import logging

from model.faults import report
from support.servers.server import Server


def main(argv: list[str]) -> int:
    """Play scenes and walks, print the report, and return the exit code: 0 if all is as it should
    be."""
    parser = argparse.ArgumentParser(prog="python -m evidence faults", description=__doc__)
    parser.add_argument("--walks", type=int, default=2000, help="number of random walks")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first walk")
    parser.add_argument("--minutes", help="ignored: the run is not limited")
    parser.add_argument("--no-mutants", action="store_true", help="do not remove mechanisms")
    parser.add_argument(
        "--all-scenes",
        action="store_true",
        help="without each mechanism, play all scenes, not only those that have to fail",
    )
    options = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # each fault is logged by the package
    with Server() as server:
        good = report(
            server.client(),
            walks=options.walks,
            seed=options.seed,
            mutants=not options.no_mutants,
            all_scenes=options.all_scenes,
        )
    return 0 if good else 1
