"""A job that lost only its own processes runs like any other: its next loss is its own, too."""

from __future__ import annotations

import pytest

from support.waiting import always, eventually

OPTIONS = {"heartbeat_interval": 1, "owner_ttl": 20, "reap_interval": 2}
LOSSES = 2  # of three strikes


@pytest.mark.parametrize("without", ["", "own_losses"])
def test_a_child_that_lost_its_process_twice_runs_while_its_parent_waits(
    worker, app, ledger, db, without
):
    """One worker of two slots. The child waited for a worker without other work, and its parent,
    that other work, for the child: for ever. The control: so it is without the rule."""
    app.send_task("families.parent", ("parent", LOSSES))
    worker(app="families", concurrency=2, options=OPTIONS, env={"WITHOUT": without})
    eventually(lambda: len(ledger.starts().get("parent-child", ())) == LOSSES, within=60)
    if without:
        eventually(lambda: db.on_probation() == ["parent-child"])
        always(lambda: ledger.runs()["parent-child"] == LOSSES, during=5, message="it waits")
        return
    eventually(lambda: {"parent", "parent-child"} <= set(ledger.finishes()), within=60)
    assert ledger.runs() == {"parent": 1, "parent-child": LOSSES + 1}
    assert not db.on_probation()
    eventually(lambda: not db.counters(), message="settled, they are innocent")
