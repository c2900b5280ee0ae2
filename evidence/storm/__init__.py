"""Send many jobs of all kinds to workers of four pools on two machines, and harm the workers, their
network or the Redis server every few seconds. Then the checker judges the history
(`evidence/checker.py`).

`python -m evidence storm` runs it, and so does `tests/evidence/test_storm.py`. If the program is
killed, its workers and servers end with it, and the history has no ``rest`` line, so the checker
does not accept it: run it again.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from support.hosts import namespaces_available

from .. import checker
from ..history import History
from . import harms, load
from .fleet import Fleet
from .harms import Harms
from .load import Load
from .strikes import strikes
from .tasks import SIDES, outcome

#: Seconds between two checks of what is due.
STEP = 0.05
#: Number of troubles whose jobs are printed in full; and seconds before and after such a job of
#: which the harms and logs are printed, too.
TOLD, NEAR = 5, 20


def main(argv: list[str]) -> int:
    """Run a storm, print the verdict, and return the exit code: 0 if each event is explained."""
    parser = argparse.ArgumentParser(prog="python -m evidence storm", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="minutes of jobs and harms")
    parser.add_argument("--seed", type=int, help="seed of jobs and harms (default: random)")
    parser.add_argument("--side", default="ours", choices=SIDES)
    parser.add_argument("--rate", type=float, default=75, help="messages sent per second")
    parser.add_argument("--every", type=float, default=2.5, help="seconds between two harms")
    parser.add_argument(
        "--patience", type=float, default=120, help="seconds to wait at the end for empty queues"
    )
    parser.add_argument(
        "--without", default="", help="safeties of the package to remove, as a control"
    )
    parser.add_argument("--history", type=Path, help="file of the history (default: a new file)")
    parser.add_argument(
        "--logs", type=Path, help="directory for the workers' logs (default: logs are deleted)"
    )
    options = parser.parse_args(argv)
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = options.history or Path(f"evidence-storm-{options.side}-{seed}-{stamp}.jsonl")
    print(f"storm: {options.side}, seed {seed}, {options.minutes:g} minutes", flush=True)
    if not namespaces_available()[0]:
        print(f"All workers run on one machine: {namespaces_available()[1]}")
    history = History(path)
    expected = {**load.EXPECTED, **harms.EXPECTED}
    history.write(
        "run", argv=argv, seed=seed, side=options.side, versions=_versions(), expected=expected
    )
    with tempfile.TemporaryDirectory(prefix="storm-") as temporary:
        directory = (options.logs or Path(temporary)).resolve()
        try:
            storm(history, directory, seed, options)
        finally:
            digest = history.close()
            print(f"history: {path}.gz, SHA-256 of its lines {digest}")
        code = checker.main(str(path))
        if code:
            print(*unexplained(path, directory), sep="\n")
    return code


def unexplained(path: Path, logs: Path) -> Iterator[str]:
    """Yield what is known of the first jobs in trouble: their lines in the history, the harms to
    their workers at that time, and what these workers logged then, without lines on other jobs.

    Arguments:
        path: the history.
        logs: the directory of the workers' logs.
    """
    lines = sorted(checker.read(path), key=lambda line: float(line["at"]))
    troubles = [text for texts in checker.judge(checker.load(lines)).values() for text in texts]
    for job in dict.fromkeys(text.split()[0].rstrip(":") for text in troubles[:TOLD]):
        own = [line for line in lines if line.get("job") == job]
        if not own:
            continue  # the trouble is of a place or a key, and the verdict names it already
        workers = {line["worker"] for line in own if "worker" in line}
        first, last = own[0]["at"] - NEAR, own[-1]["at"] + NEAR
        yield f"== {job}"
        for line in lines:
            hit = first <= line["at"] <= last and workers.intersection(line.get("workers", ()))
            if hit or line in own:
                yield json.dumps(line)
        stamps = [time.strftime("[%Y-%m-%d %H:%M:%S", time.localtime(at)) for at in (first, last)]
        for log in sorted(log for worker in workers for log in logs.glob(f"{worker}-*.log")):
            for text in log.read_text().splitlines():
                others = re.search(r"storm\.\w+\[", text) and f"[{job}:" not in text
                if stamps[0] <= text <= stamps[1] and not others:
                    yield f"{log.name}: {text}"


def storm(history: History, directory: Path, seed: int, options: argparse.Namespace) -> None:
    """Send jobs and do harms until the time is over. Then wait until the queues are empty, and
    write the outcome of each job that did not succeed, the strikes, and the keys of jobs that still
    wait."""
    with Fleet(options.side, history, directory, options.without) as fleet:
        until = time.monotonic() + options.minutes * 60
        trouble = Harms(fleet, seed + 1, until)
        with Load(fleet.app, history, seed, options.rate) as sender:
            due = time.monotonic() + options.every
            while time.monotonic() < until:
                if time.monotonic() >= due:
                    due += options.every
                    trouble.next()
                trouble.lasting()
                fleet.begin()
                time.sleep(STEP)
        while trouble.lasting():
            time.sleep(STEP)
        if waits := fleet.at_rest(options.patience):
            fleet.show_stacks()
        for (job, step), stored in fleet.states(sender.steps).items():
            state = outcome(stored)
            if state["state"] != "SUCCESS":
                history.write("outcome", job=job, step=step, **state)
        if options.side == "ours":
            for strike in strikes(fleet.app, history.path):
                history.write("strike", **strike)
        history.write("rest", waits=waits)


def _versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed, by name."""
    found = {"python": platform.python_version()}
    for name in ("celery", "kombu", "redis", "celery-superfetch", "celery-redis-plus"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
