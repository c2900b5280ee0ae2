"""Tests drive the jobs in flight through ``Driver``, so that a change to ``owner/in_flight`` is a
change of one file of tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.house import HERE

INTERNALS = "celery_superfetch.owner.in_flight"
#: Parts of an owner, by names that nothing else has attributes of.
PARTS = {"in_flight", "leases", "lost_claims", "lost_jobs", "pending", "settlement"}

#: Files that may know the internals: the port, the tests of one class without a server, and the
#: small model, whose processes change their leases by the package's own table.
MAY_KNOW = {
    "evidence/small/mutants.py",
    "evidence/small/processes.py",
    "evidence/small/state.py",
    "tests/support/driver.py",
    "tests/support/fault_mutants.py",
    "tests/support/interventions.py",
    "tests/unit/owner/test_lease.py",
    "tests/unit/owner/test_parking.py",
}
FILES = {
    str(path.relative_to(HERE)): path
    for folder in ("tests", "evidence", "benchmarks")
    for path in (HERE / folder).rglob("*.py")
}


def internals(source: str) -> Iterator[str]:
    """Yield what a file imports from the internals, and where it reaches through an owner."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith(INTERNALS))
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if name.startswith(INTERNALS))
        elif isinstance(node, ast.Attribute) and getattr(node.value, "attr", None) in PARTS:
            yield ast.unparse(node)


@pytest.mark.parametrize("name", sorted(FILES.keys() - MAY_KNOW))
def test_only_the_driver_knows_how_jobs_in_flight_are_kept(name: str) -> None:
    assert [*internals(FILES[name].read_text())] == []


@pytest.mark.parametrize("name", sorted(MAY_KNOW))
def test_no_file_is_excepted_for_nothing(name: str) -> None:
    assert [*internals(Path(HERE / name).read_text())]


def test_the_control_an_import_and_a_reach_are_seen() -> None:
    source = (
        "from celery_superfetch.owner import in_flight\n"
        "from celery_superfetch.owner.in_flight.lease import State\n"
        "owner.in_flight.jobs; report.in_flight"
    )
    assert sorted(internals(source)) == [
        "celery_superfetch.owner.in_flight",
        "celery_superfetch.owner.in_flight.lease.State",
        "owner.in_flight.jobs",
    ]
