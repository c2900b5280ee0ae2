"""Runs all benchmarks whose figures README.md and docs/inside/performance.md show.

    python benchmarks/all.py [--results DIR] [--only worker,idle] [--skip peers] [--minutes 120]

Each part is one benchmark, in a process of its own, with the options that the figures had. The
parts run one after the other. A part writes ``DIR/<part>.json`` when it ends; its output is in
``DIR/<part>.log``. ``DIR/run.json`` has for each part the commit, the versions, the machine, the
load average before it, its start and end, and its exit code. ``--minutes 0`` lists the parts and
begins none.

To continue an interrupted run, give the same command again. A part is skipped if its result is
complete and from the same commit, options, versions and machine. If the code has changes that are
not committed, no part is skipped. So run it in a checkout that stays at one commit, and commit the
results when all parts have run. A part that fails does not stop the others; the end of its output
is printed last.

Distorted by: any other process on the machine (all figures but counts and memory). So each part
waits until the machine is quiet, for ``--wait`` minutes at most. If it never was, ``run.json`` has
``"quiet": false`` for this part: delete its result, and run again. celery-redis-plus needs Python
3.13; with another version the parts run without it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from compare import RESULTS, machine, without_plus  # (it puts the tests on the path)

from support.process import guarded
from support.servers.server import Server

ROOT = Path(__file__).resolve().parent.parent
#: Files that decide a figure: with changes in them a commit does not say what was measured.
CODE = ("celery_superfetch", "tests/support", ":(glob)benchmarks/*.py")
#: A machine is quiet if its load average of one minute is below this.
QUIET_LOAD = 0.7
LOAD_POLL_S = 5.0
#: A part is interrupted after so many times its usual duration, and this much more.
LIMIT_FACTOR, LIMIT_EXTRA_MINUTES = 4, 10
#: An interrupted part ends its workers and servers within this, or is killed.
INTERRUPT_S = 60.0
TAIL_LINES = 15
#: Contenders besides celery_superfetch; "itself" has another case as its base, or none.
WITH_STOCK, WITH_PEERS, ALONE = "stock", "stock, celery-redis-plus", "itself"


@dataclass(frozen=True)
class Part:
    """One benchmark with the options of its figures.

    Arguments:
        name: the stem of its result.
        script: the file in benchmarks/.
        options: as a shell has them.
        against: the contenders besides celery_superfetch.
        minutes: its usual duration on two cores.
    """

    name: str
    script: str
    options: str
    against: str
    minutes: float

    @property
    def command(self) -> str:
        return f"benchmarks/{self.script}.py {self.options}".strip()

    @property
    def limit_s(self) -> float:
        return (LIMIT_FACTOR * self.minutes + LIMIT_EXTRA_MINUTES) * 60


PARTS = (
    Part("worker", "worker", "--rounds 5 --jobs 3000", f"{WITH_PEERS}, RQ", 4),
    Part("transport", "transport", "--rounds 3", WITH_PEERS, 4),
    Part("large", "transport", '--rounds 7 --only "1 MB"', WITH_PEERS, 1.5),
    Part("idle", "idle", "--rounds 3 --only wake", WITH_PEERS, 7),
    Part("connections", "idle", "--only connections", WITH_PEERS, 1),
    Part("memory", "memory", "--rounds 2", WITH_PEERS, 1),
    Part("lone_job", "lone_job", "", WITH_PEERS, 9),
    Part("publish", "publish", "", WITH_PEERS, 3),
    Part("workflows", "workflows", "", WITH_STOCK, 4),
    Part("followers", "followers", "--only group", WITH_STOCK, 3),
    Part("parked", "parked", '--rounds 1 --only "due in a day"', WITH_STOCK, 4),
    Part("solo_fleet", "solo_fleet", "", WITH_STOCK, 5),
    Part("recovery", "recovery", '--only "10,000 jobs of 300 B"', WITH_STOCK, 1),
    Part("pool_process", "recovery_time", "--kills 20 --backlog 0 --only pool-process", ALONE, 0.5),
    Part(
        "recovery_time",
        "recovery_time",
        "--kills 8 --backlog 0 --only same-host --only successor --only other-host"
        " --only moved-successor --only first-waiting --only first-sent --only added-queue",
        ALONE,
        6,
    ),
    Part("operate", "operate", "--rounds 2", ALONE, 5),
    Part("cluster", "cluster", "", ALONE, 4),
    Part("notices", "notices", "", ALONE, 4),
    Part("mass", "mass", '--rounds 2 --only "1,000 silent"', ALONE, 10),
    Part("places", "places", "", ALONE, 1),
    Part("suspects", "suspects", "", ALONE, 18),
    Part("peers", "peers", "", WITH_PEERS, 60),
)


class Record:
    """``run.json``: what each part ran with, and how it ended."""

    def __init__(self, results: Path, commit: str, environment: dict[str, Any]) -> None:
        self.results, self.commit, self.environment = results, commit, environment
        self._path = results / "run.json"
        self.parts: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            self.parts = json.loads(self._path.read_text())["parts"]

    def is_complete(self, part: Part) -> bool:
        """Return whether the result of a part is of this code, and need not be measured again."""
        row = self.parts.get(part.name, {})
        return (
            not self.commit.endswith(CHANGED)
            and row.get("rc") == 0
            and "error" not in row
            and self._identity(part).items() <= row.items()
            and (self.results / f"{part.name}.json").exists()
        )

    def begin(self, part: Part, load: float, waited_s: float) -> None:
        self.parts[part.name] = {
            **self._identity(part),
            "load_before": round(load, 2),
            "quiet": load < QUIET_LOAD,
            "waited_s": round(waited_s),
            "start": _now(),
        }
        self._write()

    def end(self, part: Part, rc: int, error: str) -> None:
        """Store how a part ended. Without this its row has no exit code: the driver was killed."""
        row = self.parts[part.name]
        row |= {"end": _now(), "rc": rc, **({"error": error} if error else {})}
        self._write()

    def _identity(self, part: Part) -> dict[str, Any]:
        return {"commit": self.commit, "command": part.command, "machine": self.environment}

    def _write(self) -> None:
        names = [part.name for part in PARTS if part.name in self.parts]
        rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(self.parts[name])}" for name in names)
        new = self._path.with_suffix(".json.new")
        new.write_text(f'{{"parts": {{\n{rows}\n}}}}\n')
        new.replace(self._path)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


#: Appended to a commit whose files were changed.
CHANGED = " with changes"


def commit_of_checkout() -> str:
    """Return the commit, with a mark if the code differs from it or there is none."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", *CODE)
        return git("rev-parse", "HEAD") + (CHANGED if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return f"no commit,{CHANGED}"


def environment() -> dict[str, Any]:
    """Return the versions and the machine that the figures depend on."""
    with Server() as server:
        info = server.client().info("server")
    name = info.get("server_name", "redis")
    number = info.get("valkey_version", info["redis_version"])
    return {**machine(), "server": f"{name} {number}", "cpu": _cpu_model()}


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else "unknown"


def wait_until_quiet(limit_s: float) -> tuple[float, float]:
    """Wait until the load is below ``QUIET_LOAD``, or ``limit_s`` is over. Return the load, and how
    long that took."""
    began = time.monotonic()
    while True:
        load, waited_s = os.getloadavg()[0], time.monotonic() - began
        if load < QUIET_LOAD or waited_s >= limit_s:
            return load, waited_s
        time.sleep(min(LOAD_POLL_S, limit_s - waited_s))


def run(part: Part, results: Path) -> tuple[int, str]:
    """Run one part. Return its exit code and, if it failed, the reason with the end of its output.

    The result replaces an older one only if the part succeeds: a part that fails or is killed
    leaves no half of a result.
    """
    result, log = results / f"{part.name}.json", results / f"{part.name}.log"
    new = results / f"{part.name}.json.new"
    new.unlink(missing_ok=True)
    # Guarded: if the driver is killed, a benchmark that continued would distort the next run.
    argv = guarded([sys.executable, *shlex.split(part.command), "--json", str(new.resolve())])
    # The benchmark, and the workers that it starts, import this checkout and no installed package.
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path}
    reason = ""
    with log.open("w") as output:
        process = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(part.limit_s)
        except subprocess.TimeoutExpired:
            reason = f"interrupted: it took more than {part.limit_s / 60:.0f} minutes"
        finally:
            _interrupt(process)
    if not reason and process.returncode:
        reason = f"exit code {process.returncode}"
    if not reason and not (new.exists() and _has_figures(new)):
        reason = f"it measured nothing: {part.command}"
    if reason:
        tail = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return process.returncode, "\n".join([reason, *tail])
    new.replace(result)
    return 0, ""


def _has_figures(result: Path) -> bool:
    """Return whether a result has a figure: ``--only`` may name a case that no longer exists."""
    found = json.loads(result.read_text())
    return any(
        [*(t["rows"] for t in found.get("tables", [])), found.get("rows"), found.get("queues")]
    )


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """End a benchmark that runs, as Ctrl-C does: it ends its workers and servers."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(INTERRUPT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _names(value: str) -> set[str]:
    names = {name for name in value.split(",") if name}
    if unknown := names - {part.name for part in PARTS}:
        known = ", ".join(part.name for part in PARTS)
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(unknown)}. Parts: {known}")
    return names


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="(benchmarks/results)")
    parser.add_argument("--only", type=_names, default=set(), help="these parts: worker,idle")
    parser.add_argument("--skip", type=_names, default=set(), help="not these parts")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no part after these"
    )
    parser.add_argument(
        "--wait", type=float, default=10.0, help="minutes, at most, for a quiet machine (10)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    deadline = time.monotonic() + args.minutes * 60
    args.results.mkdir(parents=True, exist_ok=True)
    record = Record(args.results, commit_of_checkout(), environment())
    print(f"commit {record.commit}")
    print(", ".join(f"{key} {value}" for key, value in record.environment.items()))
    for contender, why in without_plus().items():
        print(f"No part measures {contender}: {why}.")
    chosen = (args.only or {part.name for part in PARTS}) - args.skip
    failures: dict[str, str] = {}
    for part in PARTS:
        if part.name not in chosen:
            continue
        record.commit = commit_of_checkout()  # it may differ from that of the part before
        title = f"{part.name} (about {part.minutes:g} min, against {part.against})"
        if record.is_complete(part):
            print(f"{title}: complete, skipped", flush=True)
            continue
        left_s = deadline - time.monotonic()
        load, waited_s = wait_until_quiet(max(0.0, min(args.wait * 60, left_s)))
        if time.monotonic() >= deadline:
            print(f"{title}: not begun, --minutes are over: {part.command}", flush=True)
            continue
        if load >= QUIET_LOAD:
            print(f"{title}: the machine is not quiet (load {load:.2f})", flush=True)
        print(f"{title}: {part.command}", flush=True)
        record.begin(part, load, waited_s)
        began = time.monotonic()
        rc, error = run(part, args.results)
        record.end(part, rc, error.partition("\n")[0])
        if error:
            failures[part.name] = error
        outcome = "failed" if error else "done"
        print(f"{title}: {outcome} in {(time.monotonic() - began) / 60:.1f} min", flush=True)
    for name, error in failures.items():
        print(f"\n{name} failed: {error}\n(all of it: {args.results / name}.log)")
    return int(bool(failures))


if __name__ == "__main__":
    # A shell that starts this in the background has it ignore SIGINT, and the benchmarks with it:
    # they could not be interrupted. On SIGTERM, too, the benchmark ends its workers and servers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
