"""Tests of kombu's and of Celery's own, unchanged: on stock, and on ours.

    python tests/evidence/conformance/run.py [kombu | integration | smoke] [--every 8]

They are in the source distributions, not in the wheels. The one that matches the installed version
is fetched with pip into a temporary directory; without a package index nothing is run, and the
reason is printed (`--sdist` names a file instead). What the suites are is in `suites.py`. Each runs
twice, each half in `--jobs` processes with a server each, because the tests mostly sleep:

- *stock*: kombu's own transport, the control. None may fail.
- *ours*: our transport, as `<suite>_suite.py` puts it there. The outcomes must be the same, but for
  the rows of `stock_only.py`, which must fail: a row that passes is a row too many.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
sys.path[:0] = [str(TESTS), str(HERE)]

from stock_only import ANNOUNCED, Row, missing_counterparts, rows_for  # noqa: E402
from suites import SUITES, Suite  # noqa: E402

from support.hosts import namespaces_available  # noqa: E402
from support.servers.server import NoServerBinary, Server  # noqa: E402

#: Seconds one process may take: a test that hangs must not hang the build.
LIMIT = 1500


class NoIndex(Exception):
    """The source distribution could not be fetched; the message says why."""


def fetch(package: str, version: str, into: Path) -> Path:
    """Its sdist of that version, from the package index pip is configured for."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", package]
    command += ["--disable-pip-version-check", "--dest", str(into), f"{package}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    found = sorted(into.glob(f"{package}-*.tar.gz"))
    if done.returncode or not found:
        raise NoIndex((done.stderr.strip() or "pip brought no sdist").splitlines()[-1])
    return found[0]


def unpack(sdist: Path, into: Path, suite: Suite) -> list[str]:
    """Unpack the tests alone (what they test is the installed one); the files of a suite."""
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            path = Path(*Path(member.name).parts[1:])
            if member.isfile() and path.parts[:1] == ("t",) and ".." not in path.parts:
                source = archive.extractfile(member)
                assert source is not None
                (into / path).parent.mkdir(parents=True, exist_ok=True)
                (into / path).write_bytes(source.read())
    (into / "pytest.ini").write_text("[pytest]\npython_classes = test_*\n")
    files = {str(f.relative_to(into)) for pattern in suite.files for f in into.glob(pattern)}
    return sorted(file for file in files if not any(word in file for word in suite.without))


@dataclass
class Share:
    """What one process ran: test id -> its outcome, and what pytest printed."""

    outcomes: dict[str, str]
    output: str
    status: int


@dataclass
class Run:
    """One suite, unpacked."""

    name: str
    files: list[str]
    checkout: Path
    jobs: int
    #: A sample: of the tests only each so-manieth is run.
    every: int

    @property
    def suite(self) -> Suite:
        return SUITES[self.name]

    def share(self, kind: str, number: int) -> Share:
        """Every `jobs`-th test, on a server of its own."""
        outcomes = self.checkout / f"{kind}-{number}.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "plugin"]
        command += ["-p", f"{self.name}_suite"]
        command += ["-k", " and ".join(f"not {word}" for word in self.suite.without)]
        with Server() as server:
            env = {
                **os.environ,
                "REDIS_HOST": "127.0.0.1",
                "REDIS_PORT": str(server.port),
                "REDIS_6379_TCP": str(server.port),
                "TEST_BROKER": server.url(),
                "TEST_BACKEND": server.url(),
                "WORKER_LOGLEVEL": "INFO",
                "PYTHONPATH": os.pathsep.join(
                    [str(TESTS.parent), str(TESTS), str(HERE), str(self.checkout)]
                ),
                "CONFORMANCE_SUITE": self.name,
                "CONFORMANCE_VERSION": self.suite.version,
                "CONFORMANCE_TRANSPORT": kind,
                "CONFORMANCE_SHARE": f"{number}/{self.jobs}",
                "CONFORMANCE_EVERY": str(self.every),
                "CONFORMANCE_OUTCOMES": str(outcomes),
            }
            status = 1
            with (self.checkout / f"{kind}-{number}.log").open("w+") as log:
                try:
                    status = subprocess.run(
                        [*command, *self.files], cwd=self.checkout, env=env, stdout=log,
                        stderr=log, timeout=LIMIT, check=False,
                    ).returncode  # fmt: skip
                except subprocess.TimeoutExpired:
                    log.write(f"no end within {LIMIT} s\n")
                log.seek(0)
                output = log.read()
        found = json.loads(outcomes.read_text()) if outcomes.exists() else {}
        return Share(found, output, status)

    def halves(self) -> dict[str, list[Share]]:
        with ThreadPoolExecutor(max_workers=2 * self.jobs) as threads:
            started = {
                kind: [threads.submit(self.share, kind, number) for number in range(self.jobs)]
                for kind in ("stock", "ours")
            }
        return {kind: [future.result() for future in half] for kind, half in started.items()}


def judge(halves: dict[str, list[Share]], rows: tuple[Row, ...], *, whole: bool) -> dict[str, str]:
    """What is wrong, by half and test; empty when nothing is. Where a suite is not run as a
    ``whole``, a row may have no test."""
    wrong = {}
    outcomes = {
        kind: {test: outcome for share in half for test, outcome in share.outcomes.items()}
        for kind, half in halves.items()
    }
    for kind, half in halves.items():
        counted = collections.Counter(outcomes[kind].values())
        tally = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counted.items()))
        print(f"{kind:>6}: {len(outcomes[kind])} tests: {tally}")
        if not counted["passed"]:
            wrong[kind] = "no test has passed"
        for share in half:
            if share.status:
                wrong[f"{kind}: pytest"] = f"exit status {share.status}"
                print(share.output)
    for test, outcome in outcomes["stock"].items():
        ours = outcomes["ours"].get(test, "not run")
        if outcome not in ("passed", "skipped", ANNOUNCED):
            wrong[f"stock: {test}"] = outcome
        if ours != (ANNOUNCED if any(row.matches(test) for row in rows) else outcome):
            wrong[f"ours: {test}"] = ours
    for row in rows:
        if whole and not any(row.matches(test) for test in outcomes["ours"]):
            wrong[row.test] = "is in stock_only.py, but there is no such test"
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("suite", nargs="?", choices=SUITES, default="kombu")
    parser.add_argument("--sdist", type=Path, help="a file, instead of the package index")
    parser.add_argument("--jobs", type=int, default=4, help="processes for each half (default 4)")
    parser.add_argument("--every", type=int, default=1, help="run each n-th test alone (default 1)")
    options = parser.parse_args()
    started = time.monotonic()
    suite = SUITES[options.suite]
    package = f"{suite.package} {suite.version}"
    possible, reason = namespaces_available() if options.suite == "smoke" else (True, "")
    if not possible:
        print(f"SKIPPED: its containers need namespaces: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="superfetch-conformance-") as scratch:
        checkout = Path(scratch)
        try:
            sdist = options.sdist or fetch(suite.package, suite.version, checkout)
        except NoIndex as exc:
            print(f"SKIPPED: {package}'s sdist cannot be fetched: {exc}")
            return 0
        files = unpack(sdist, checkout, suite)
        if not files:
            print(f"SKIPPED: the sdist of {package} holds no {', '.join(suite.files)}")
            return 0
        print(f"{package}: {', '.join(files)}", flush=True)
        rows = rows_for(options.suite, suite.version)
        wrong = {
            f"counterpart {name}": "no such test of ours"
            for name in missing_counterparts(options.suite, TESTS)
        }
        run = Run(options.suite, files, checkout, options.jobs, options.every)
        wrong |= judge(run.halves(), rows, whole=options.every == 1)
        for row in rows:
            print(f"  stock only: {row.test}: {row.reason}")
        for test, why in wrong.items():
            print(f"WRONG {test}: {why}")
        print(f"{'FAILED' if wrong else 'passed'} in {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NoServerBinary as exc:
        print(f"SKIPPED: {exc}")
