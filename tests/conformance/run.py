"""kombu's own integration tests for its Redis transport, unchanged, against ours.

    python tests/conformance/run.py

The tests are in kombu's source distribution, not in its wheel. The one that matches the installed
kombu is fetched with pip into a temporary directory; without a package index nothing is run, and
the reason is printed (`--sdist` names a file instead). They run twice, each half in `--jobs`
processes with a server each, because they mostly sleep:

- *stock*: kombu's own transport, the control. All of them must pass.
- *ours*: `redis` and `rediss` mean `celery_superfetch:Transport`. All of them must pass, but for
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
TESTS = HERE.parent
sys.path[:0] = [str(TESTS), str(HERE)]

import kombu  # noqa: E402
from stock_only import Row, missing_counterparts, rows_for  # noqa: E402

from support.servers.server import NoServerBinary, Server  # noqa: E402

#: Seconds one process may take: a test that hangs must not hang the build.
LIMIT = 600


class NoIndex(Exception):
    """The source distribution could not be fetched; the message says why."""


def fetch(into: Path) -> Path:
    """kombu's sdist of the installed version, from the package index pip is configured for."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "kombu"]
    command += ["--disable-pip-version-check", "--dest", str(into), f"kombu=={kombu.__version__}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    found = sorted(into.glob("kombu-*.tar.gz"))
    if done.returncode or not found:
        raise NoIndex((done.stderr.strip() or "pip brought no sdist").splitlines()[-1])
    return found[0]


def unpack(sdist: Path, into: Path) -> list[str]:
    """Unpack the tests alone (kombu itself is the installed one); the files for Redis."""
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            path = Path(*Path(member.name).parts[1:])
            if member.isfile() and path.parts[:1] == ("t",) and ".." not in path.parts:
                source = archive.extractfile(member)
                assert source is not None
                (into / path).parent.mkdir(parents=True, exist_ok=True)
                (into / path).write_bytes(source.read())
    (into / "pytest.ini").write_text("[pytest]\npython_classes = test_*\n")
    return sorted(str(f.relative_to(into)) for f in into.glob("t/integration/test_redis*.py"))


@dataclass
class Share:
    """What one process ran: test id -> its outcome, and what pytest printed."""

    outcomes: dict[str, str]
    output: str
    status: int


def run(files: list[str], kind: str, share: int, jobs: int, checkout: Path) -> Share:
    """Every `jobs`-th test, on a server of its own."""
    outcomes = checkout / f"{kind}-{share}.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "plugin"]
    with Server() as server:
        env = {
            **os.environ,
            "REDIS_HOST": "127.0.0.1",
            "REDIS_6379_TCP": str(server.port),
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(HERE)]),
            "CONFORMANCE_TRANSPORT": kind,
            "CONFORMANCE_SHARE": f"{share}/{jobs}",
            "CONFORMANCE_OUTCOMES": str(outcomes),
        }
        try:
            done = subprocess.run(
                [*command, *files], cwd=checkout, env=env, capture_output=True, text=True,
                timeout=LIMIT, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            return Share({}, f"no end within {LIMIT} s\n{exc.stdout!r}", 1)
    found = json.loads(outcomes.read_text()) if outcomes.exists() else {}
    return Share(found, done.stdout + done.stderr, done.returncode)


def judge(kind: str, shares: list[Share], rows: tuple[Row, ...]) -> dict[str, str]:
    """What is wrong with one half, by test id; empty when nothing is."""
    outcomes = {test: outcome for share in shares for test, outcome in share.outcomes.items()}
    wrong = {t: o for t, o in outcomes.items() if o not in ("passed", "failed as expected")}
    for share in shares:
        if share.status and not wrong:
            wrong["pytest"] = f"exit status {share.status}\n{share.output[-2000:]}"
    if kind == "ours":
        for row in rows:
            if not any(row.matches(test) for test in outcomes):
                wrong[row.test] = "is in stock_only.py, but there is no such test"
    counted = collections.Counter(outcomes.values())
    tally = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counted.items()))
    print(f"{kind:>6}: {len(outcomes)} tests: {tally}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sdist", type=Path, help="kombu's sdist, instead of the package index")
    parser.add_argument("--jobs", type=int, default=4, help="processes for each half (default 4)")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="superfetch-conformance-") as scratch:
        checkout = Path(scratch)
        try:
            files = unpack(options.sdist or fetch(checkout), checkout)
        except NoIndex as exc:
            print(f"SKIPPED: kombu {kombu.__version__}'s sdist cannot be fetched: {exc}")
            return 0
        if not files:
            print(f"SKIPPED: the sdist of kombu {kombu.__version__} holds no tests for Redis")
            return 0
        rows = rows_for(kombu.__version__)
        wrong = {
            f"counterpart {name}": "no such test of ours" for name in missing_counterparts(TESTS)
        }
        with ThreadPoolExecutor(max_workers=2 * options.jobs) as threads:
            halves = {
                kind: [
                    threads.submit(run, files, kind, share, options.jobs, checkout)
                    for share in range(options.jobs)
                ]
                for kind in ("stock", "ours")
            }
        print(f"kombu {kombu.__version__}, {', '.join(files)}")
        shares = {kind: [future.result() for future in half] for kind, half in halves.items()}
        for kind, half in shares.items():
            found = judge(kind, half, rows)
            wrong.update({f"{kind}: {test}": why for test, why in found.items()})
            if found:
                print(*(share.output for share in half if share.status), sep="\n")
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
