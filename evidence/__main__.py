"""`python -m evidence`: all parts, or the one that is named. Exits 0 if each verdict is good."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from importlib.util import find_spec

#: Part -> what it shows. Each is a module `evidence.<part>` whose `main` takes the words after it.
PARTS = {
    "crash-points": "kill the process of a job before and after each of its commands",
    "model": "try all orders of the steps of two processes, two jobs and a reaper",
    "storm": "send many jobs of all kinds while many things fail",
}
#: More parts, which run only if they are named. The mutations judge the tests, and take hours.
NAMED = {
    "faults": "try each fault at each point where a process uses its connections",
    "mutation": "change each line of the scripts and each branch of the rules once",
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m evidence", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long each part may take")
    parser.add_argument("--seed", type=int, help="seed of the random numbers")
    parser.add_argument("--python", help="run in this interpreter, which may have another Celery")
    parser.add_argument(
        "part",
        nargs="?",
        choices=[*PARTS, *NAMED],
        help="one part alone (default: the first three)",
    )
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, help="options of the part: see `<part> --help`"
    )
    options = parser.parse_args(argv)
    if options.python:
        os.execv(options.python, [options.python, "-m", "evidence", *_without_python(argv)])
    common = [
        f"--{name}={value}"
        for name in ("minutes", "seed")
        if (value := getattr(options, name)) is not None
    ]
    parts = [options.part] if options.part else list(PARTS)
    return max([_run(part, [*common, *options.rest]) for part in parts])


def _run(part: str, arguments: list[str]) -> int:
    name = f"evidence.{part.replace('-', '_')}"
    if find_spec(name) is None:
        print(f"{part}: this checkout does not have this part.", file=sys.stderr)
        return 2
    print(f"== {part}: {(PARTS | NAMED)[part]}", flush=True)
    code: int = import_module(name).main(arguments)
    return code


def _without_python(argv: list[str]) -> list[str]:
    words = list(argv)
    for at, word in enumerate(words):
        if word == "--python":
            return words[:at] + words[at + 2 :]
        if word.startswith("--python="):
            return words[:at] + words[at + 1 :]
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
