"""`python -m evidence faults`: one process with its jobs in flight, in scenes, each fault at each
point of its connections; random walks with several faults; then each mechanism taken out once, in
the scenes that show what it is for.

The server and the scripts are real. `tests/model/faults.py` has the scenes and the invariants.
"""

from __future__ import annotations

import argparse
import logging

from model.faults import report
from support.servers.server import Server


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m evidence faults", description=__doc__)
    parser.add_argument("--walks", type=int, default=2000, help="how many random walks")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first walk")
    parser.add_argument("--minutes", help="it takes as long as it takes")
    parser.add_argument("--no-mutants", action="store_true", help="only what must not fail")
    parser.add_argument("--all-scenes", action="store_true", help="all of them for each mutant")
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
