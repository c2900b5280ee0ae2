"""`python -m evidence storm`: many jobs of all kinds in four pools on two machines, and a harm
every few seconds; then the checker judges the history (`evidence/checker.py`)."""

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

#: Seconds between two looks at what is due.
STEP = 0.05
#: Of how many jobs in trouble all is told, and of how many seconds before and after each.
TOLD, NEAR = 5, 20


def main(argv: list[str]) -> int:
    """Run a storm, print the verdict, and exit with 0 if nothing is unexplained."""
    parser = argparse.ArgumentParser(prog="python -m evidence storm", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long it rages")
    parser.add_argument("--seed", type=int, help="of jobs and harms (default: any)")
    parser.add_argument("--side", default="ours", choices=SIDES)
    parser.add_argument("--rate", type=float, default=75, help="messages sent a second")
    parser.add_argument("--every", type=float, default=2.5, help="seconds between two harms")
    parser.add_argument("--patience", type=float, default=120, help="seconds to come to rest")
    parser.add_argument("--without", default="", help="safeties of ours to take out, as a control")
    parser.add_argument("--history", type=Path, help="where the lines go (default: a new file)")
    parser.add_argument("--logs", type=Path, help="where the workers' logs stay (default: nowhere)")
    options = parser.parse_args(argv)
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = options.history or Path(f"evidence-storm-{options.side}-{seed}-{stamp}.jsonl")
    print(f"storm: {options.side}, seed {seed}, {options.minutes:g} minutes", flush=True)
    if not namespaces_available()[0]:
        print(f"on one machine, since {namespaces_available()[1]}")
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
    """What the history has of the first jobs in trouble and of the harms to their workers, and what
    these workers logged then, but for other jobs."""
    lines = sorted(checker.read(path), key=lambda line: float(line["at"]))
    troubles = [text for texts in checker.judge(checker.load(lines)).values() for text in texts]
    for job in dict.fromkeys(text.split()[0].rstrip(":") for text in troubles[:TOLD]):
        own = [line for line in lines if line.get("job") == job]
        if not own:
            continue  # a place, or a key: the text above says all
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
    """Let it rage as long as it is to, and write down what has become of everything."""
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
    found = {"python": platform.python_version()}
    for name in ("celery", "kombu", "redis", "celery-superfetch", "celery-redis-plus"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
