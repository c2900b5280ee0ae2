"""Other rooms see an owner, its leases and its settlement, and none of the parts of those."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from support.house import HERE, PACKAGE, modules

MODULES = modules(HERE / PACKAGE)
#: What an owner is made of, by names that nothing else has.
PARTS = {
    "heartbeat_session",
    "in_flight",
    "lost_claims",
    "pending",
    "permit",
    "parking",
}
#: Parts of those, whose names others have, too.
INNER = PARTS | {"jobs", "lists", "parked", "stats"}
#: What other rooms see: owners, by what they are called, and two of their parts.
FACES = {"owner", "mine", "leases", "settlement"}
#: What is counted of a holding or a report, and asked of the store.
COUNTED = {"in_flight"}


def reaches(source: str) -> Iterator[str]:
    """Where a module goes through an owner to one of its parts."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        through = ast.unparse(node.value).rpartition(".")[2] in FACES and node.attr in INNER
        inner = isinstance(node.value, ast.Attribute) and node.value.attr in PARTS
        if through or inner or node.attr in PARTS - COUNTED:
            yield ast.unparse(node)


@pytest.mark.parametrize(
    "module", sorted(name for name in MODULES if not f"{name}.".startswith("owner."))
)
def test_no_other_room_reaches_through_an_owner(module):
    assert [*reaches(MODULES[module].read_text())] == []


def test_the_control_such_a_reach_is_seen():
    source = (
        "a.owner.heartbeat_session.record; owner.leases.jobs; "
        "self.in_flight.requeue(x); report.in_flight"
    )
    assert sorted(reaches(source)) == [
        "a.owner.heartbeat_session",
        "a.owner.heartbeat_session.record",
        "owner.leases.jobs",
        "self.in_flight.requeue",
    ]
