"""CPU time of a producer that imports Celery, installs this package and publishes one job.

    python benchmarks/imports.py [--rounds 15] [--before ../other-checkout] [--json]

celery_superfetch is compared with stock: the same process without the package. Each run is a fresh
process, and its value is all CPU time from its start to its end, by ``getrusage``. Each contender
runs once before, so that compiled files are there.

The aim: at most 15 ms more than stock.

Distorted by: other processes on the machine; the difference is a few per cent of the whole, so the
smallest value says more than the median. Takes: a minute.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from compare import BEFORE, OURS, STOCK, Table, arguments, begin, finish

from support.servers.server import Server

PRODUCER = """
from celery import Celery
app = Celery("bench", broker={url!r})
{install}
app.send_task("bench.nothing")
"""

INSTALL = "import celery_superfetch; celery_superfetch.install(app)"


def run(url: str, checkout: Path, install: str) -> float:
    """Return ms of CPU of one process, from its start to its end."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    code = PRODUCER.format(url=url, install=install)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code], env={**env, "PYTHONPATH": str(checkout)}, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(__doc__, rounds=15).parse_args(argv)
    here = Path(__file__).resolve().parent.parent
    table = Table("a producer's start", "ms of CPU", more=False)
    begin(table)
    with Server() as server:

        def contender(checkout: Path, install: str = INSTALL) -> Callable[[], float]:
            return lambda: run(server.url(), checkout, install)

        contenders = {STOCK: contender(here, ""), OURS: contender(here)}
        if args.before:
            contenders[BEFORE] = contender(args.before.resolve())
        for start in contenders.values():
            start()  # so that what is compiled is there
        row = table.measure("import, install, one job", args.rounds, contenders)
    for name in row.values.keys() - {STOCK}:
        least = min(row.values[name]) - min(row.values[STOCK])
        more = row.median(name) - row.median(STOCK)
        print(f"{name}: {more:+.1f} ms at the median, {least:+.1f} ms at the least")
    finish(args, [table])


if __name__ == "__main__":
    main()
