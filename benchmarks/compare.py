"""Measures contenders alternately and compares their medians: shared by all benchmarks.

The contenders take turns, so that another load on the machine slows all of them down. The results
are ratios; the smallest and the largest value say how far to trust them. No time that is measured
here holds for another machine.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import itertools
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

OWN = "celery_superfetch"
OURS, BEFORE, STOCK, PLUS = "superfetch", "before", "stock", "redis-plus"

#: Contender -> its transport as kombu names it.
TRANSPORTS = {
    OURS: "celery_superfetch.transport.transport:Transport",
    STOCK: "redis",
    PLUS: "celery_redis_plus.transport:Transport",
    BEFORE: "celery_superfetch_before:Transport",
}

#: In the environment of this process and of the workers that it starts: another checkout, whose
#: code is measured in the same run (``--before``).
CHECKOUT = "BENCHMARK_BEFORE"

#: A document for each benchmark; the docs draw their plots from these.
RESULTS = Path(__file__).resolve().parent / "results"

#: Packages whose versions decide how fast a contender is, besides the machine.
PACKAGES = ("celery_superfetch", "celery", "kombu", "redis", "celery_redis_plus", "gevent", "rq")


@dataclass
class Row:
    """One case, measured for each contender round by round."""

    case: str
    #: Contender -> a value for each round.
    values: dict[str, list[float]] = field(default_factory=dict)

    def median(self, contender: str) -> float:
        return statistics.median(self.values[contender])

    def ratio(self, contender: str, to: str = STOCK) -> float | None:
        """Return the ratio of a contender's median to another's; None if one was not measured."""
        if contender not in self.values or to not in self.values or not self.median(to):
            return None
        return self.median(contender) / self.median(to)


@dataclass
class Table:
    """Results of one benchmark.

    Arguments:
        unit: of the values, "jobs/s" or "us per ack".
        more: whether more is better.
    """

    title: str
    unit: str
    more: bool = True
    rows: list[Row] = field(default_factory=list)
    #: Contender -> why it was not measured.
    skipped: dict[str, str] = field(default_factory=dict)
    #: The contender that is the base of the ratios.
    to: str = STOCK

    def measure(self, case: str, rounds: int, contenders: dict[str, Callable[[], float]]) -> Row:
        """Measure each contender once a round, in an order that changes with the rounds."""
        both = {name: _alone(measured) for name, measured in contenders.items()}
        return measure_all([self], case, rounds, both)[0]

    def show(self) -> None:
        """Print all rows, for a table that was measured beside another."""
        print(f"\n{self.heading}")
        for row in self.rows:
            print(self.line(row))

    @property
    def heading(self) -> str:
        better = "more" if self.more else "less"
        legend = f"median [least..most] = ratio to {self.to}"
        return f"{self.title} ({self.unit}, {better} is better; {legend})"

    def line(self, row: Row) -> str:
        """Return a row as it is printed."""
        parts = [f"{row.case:34}"]
        for name, values in row.values.items():
            ratio = row.ratio(name, self.to)
            beside = "" if name == self.to or ratio is None else f" = {ratio:.2f}x"
            parts.append(
                f"{name} {_short(row.median(name))} [{_short(min(values))}..{_short(max(values))}]"
                f"{beside}"
            )
        return "  ".join(parts)

    def lines_kept(self) -> str:
        """Return the table as JSON, a line for each case; medians and ratios follow from values."""
        head = {
            "title": self.title,
            "unit": self.unit,
            "better": "more" if self.more else "less",
            "skipped": self.skipped,
        }
        rows = [
            {
                "case": row.case,
                # Runs differ from each other from the second digit on.
                "values": {n: [float(f"{v:.5g}") for v in row.values[n]] for n in row.values},
            }
            for row in self.rows
        ]
        body = ",\n".join(map(json.dumps, rows))
        return f'{json.dumps(head)[:-1]}, "rows": [\n{body}\n]}}'


def _alone(measured: Callable[[], float]) -> Callable[[], tuple[float, ...]]:
    return lambda: (measured(),)


def measure_all(
    tables: Sequence[Table],
    case: str,
    rounds: int,
    contenders: dict[str, Callable[[], tuple[float, ...]]],
) -> list[Row]:
    """Measure several things in the same runs; each returns a value for each table.

    The first table's row is printed at once, those of the others by ``finish_all``.
    """
    rows = [Row(case, {name: [] for name in contenders}) for _ in tables]
    # Every order in turn: if a contender leaves load behind, it is not always the same one that
    # suffers from it.
    orders = itertools.cycle(itertools.permutations(contenders))
    for order in itertools.islice(orders, rounds):
        for name in order:
            for row, value in zip(rows, contenders[name](), strict=True):
                row.values[name].append(value)
    for table, row in zip(tables, rows, strict=True):
        table.rows.append(row)
    print(tables[0].line(rows[0]), flush=True)
    return rows


def fetch_as(app: Any, contender: str) -> None:
    """Configure a Celery app for a contender's transport, as its users do."""
    if contender in (OURS, BEFORE):
        import celery_superfetch  # here: the others' workers have none of it

        celery_superfetch.install(app)
    elif contender == PLUS:
        app.conf.broker_transport = TRANSPORTS[PLUS]


def import_before() -> None:
    """Make the other checkout's package importable under another name, which its imports allow."""
    if importlib.util.find_spec(f"{OWN}_before"):
        return
    place, maker = Path(tempfile.mkdtemp(prefix="before-")), os.getpid()
    (place / f"{OWN}_before").symlink_to(Path(os.environ[CHECKOUT], OWN))
    sys.path.insert(0, str(place))

    def remove() -> None:
        if os.getpid() == maker:  # a forked child ends before it
            shutil.rmtree(place)

    atexit.register(remove)


def package_before(place: Path) -> None:
    """Put the other checkout's package into a folder, for a worker that finds it there under its
    own name: Celery loads steps and pools by names that it has in it."""
    (place / OWN).symlink_to(Path(os.environ[CHECKOUT], OWN))


def module_before(place: str, was: str) -> Any:
    """Import a module of the other checkout. ``was``: its name before there were rooms; "": return
    None."""
    import_before()
    return _module(f"{OWN}_before", place, was)


def _module(package: str, place: str, was: str) -> Any:
    [at] = importlib.import_module(package).__path__
    name = place if Path(at, "store").is_dir() else was
    return importlib.import_module(f"{package}.{name}") if name else None


def senders() -> dict[Any, str]:
    """Return the classes with which this checkout, and the other one, send commands -> the name of
    their method that packs some."""
    packages = [OWN]
    if CHECKOUT in os.environ:
        import_before()
        packages.append(f"{OWN}_before")
    return dict(map(_sender, packages))


def _sender(package: str) -> tuple[Any, str]:
    for room in ("store.redis", "store.wire"):  # its name, and that of an older checkout
        with suppress(ModuleNotFoundError):
            return _module(package, f"{room}.pipeline", "pipeline").Pipeline, "_packed"
    # One that is older still: in its worker it has our package's name.
    return _module(package, "store.wire.scripts", "scripts").Line, "packed"


def skipped_here() -> dict[str, str]:
    """Contender -> why it cannot be measured here."""
    before = {} if CHECKOUT in os.environ else {BEFORE: "no other checkout was named: --before"}
    return {**before, **without_plus()}


def without_plus() -> dict[str, str]:
    """Return why celery-redis-plus cannot be measured; empty if it can."""
    if sys.version_info < (3, 13):
        return {PLUS: f"it needs Python 3.13, this is {platform.python_version()}"}
    if importlib.util.find_spec("celery_redis_plus") is None:
        return {PLUS: "it is not installed: pip install celery-redis-plus"}
    return {}


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _note_checkout(value: str) -> Path:
    """Store the other checkout in the environment, for processes that are started, too."""
    path = Path(value).resolve()
    if not (path / OWN).is_dir():
        raise argparse.ArgumentTypeError(f"there is no {OWN} in {path}")
    os.environ[CHECKOUT] = str(path)
    return path


def arguments(doc: str, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds, help="of each case, alternately")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--before", type=_note_checkout, help="another checkout, to run beside this one"
    )
    add_json(parser)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json [FILE]``."""
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=RESULTS / f"{Path(parser.prog).stem}.json",
        help="store all values in this file; without one, in benchmarks/results",
    )


def machine() -> dict[str, Any]:
    """Return the versions and the machine that a result was measured with."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.system(),
        "cpus": os.cpu_count(),
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def begin(table: Table) -> None:
    """Print what is measured and with what."""
    print(table.heading)
    for name, why in table.skipped.items():
        print(f"{name} is skipped: {why}")
    print(", ".join(f"{key} {value}" for key, value in machine().items()), flush=True)


def finish_all(args: argparse.Namespace, tables: Sequence[Table]) -> None:
    """Print the tables whose rows ``measure_all`` did not print, and ``finish``."""
    for table in tables[1:]:
        table.show()
    finish(args, tables)


def finish(args: argparse.Namespace, tables: Sequence[Table]) -> None:
    """Write the result, if ``--json`` asks for it."""
    if args.json:
        body = ",\n".join(table.lines_kept() for table in tables)
        args.json.write_text(f'{{"machine": {json.dumps(machine())}, "tables": [\n{body}\n]}}\n')


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows of a benchmark that has no tables, one a line."""
    body = ",\n".join(map(json.dumps, rows))
    path.write_text(f'{{"machine": {json.dumps(machine())}, "rows": [\n{body}\n]}}\n')


def kept(path: Path) -> list[Table]:
    """Return the tables that ``finish`` wrote."""
    return [
        Table(
            table["title"],
            table["unit"],
            table["better"] == "more",
            [Row(**row) for row in table["rows"]],
            table["skipped"],
        )
        for table in json.loads(path.read_text())["tables"]
    ]
