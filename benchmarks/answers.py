"""Time of one answer of the web page and of the metrics exporter, on a connection that stays open.

    python benchmarks/answers.py [--rounds 5] [--before ../other-checkout] [--json]

celery_superfetch is compared with another checkout of itself (``--before``), if one is named. Each
round starts a fresh process and sends ``ASKED`` requests; its value is their median, from request
to end of body. The page reads the server at most once a second, so the time is that of making and
sending the answer: without TCP_NODELAY the body would wait 40 ms for the client's acknowledgement
of the head.

Distorted by: other processes on the machine. Takes: two minutes.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from compare import BEFORE, OURS, Table, arguments, begin, finish

from support.servers.server import Server, free_port
from support.workers.worker import app_env

ASKED = 50
#: Case -> the command that serves it, and the path.
CASES = {
    "the page's overview": ("web", "/"),
    "the page's style sheet": ("web", "/static/page.css"),
    "metrics": ("metrics", "/metrics"),
}


def answer_ms(checkout: Path, url: str, command: str, path: str) -> float:
    """Return ms of one answer, at the median of those of a fresh process."""
    port = free_port()
    env = {**os.environ, **app_env(url, ledger_url=url)}
    env["PYTHONPATH"] = os.pathsep.join([str(checkout), str(checkout / "tests")])
    args = ["-m", "celery", "-A", "support.apps.shop", "superfetch", command, "--port", str(port)]
    log = subprocess.DEVNULL  # where it is served
    process = subprocess.Popen([sys.executable, *args], env=env, cwd=checkout, stderr=log)
    try:
        connection = _connected(port, path)
        times = list[float]()
        for _ in range(ASKED):
            begun = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            times.append((time.perf_counter() - begun) * 1000)
            assert answer.status == 200, answer.status
        return sorted(times)[ASKED // 2]
    finally:
        process.terminate()
        process.wait()


def _connected(port: int, path: str) -> http.client.HTTPConnection:
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", path)
            connection.getresponse().read()
            return connection
        except ConnectionRefusedError:
            time.sleep(0.05)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(__doc__, rounds=5).parse_args(argv)
    here = Path(__file__).resolve().parent.parent
    checkouts = {OURS: here, **({BEFORE: args.before.resolve()} if args.before else {})}
    table = Table("one answer", "ms", more=False, to=BEFORE if args.before else OURS)
    begin(table)
    with Server() as server:
        for case, (command, path) in CASES.items():
            if args.only in case:
                contenders: dict[str, Callable[[], float]] = {
                    name: lambda at=checkout, c=command, p=path: answer_ms(at, server.url(), c, p)
                    for name, checkout in checkouts.items()
                }
                table.measure(case, args.rounds, contenders)
    finish(args, [table])


if __name__ == "__main__":
    main()
