"""`superfetch reap --wait`: who stays has watched, and who does not convicts nobody by silence."""

from __future__ import annotations

import re
import threading
from time import monotonic

from celery_superfetch.model.verdict import Reason
from support.workers.bench import elsewhere, payload

QUICK = {"heartbeat_interval": 0.4, "owner_ttl": 1}
LONG = 60.0


def test_a_silent_owner_of_another_host_is_reaped_by_a_pass_that_stays(make_bench, cli):
    bench = make_bench(**QUICK)
    far = bench.owner(elsewhere())
    bench.give(far.owner, "mail", [payload(1)])
    bench.age(far, 86_400_000)
    for _ in range(2):
        assert cli("reap", "--json", options=QUICK).json()["dead"] == {}
    dry = cli("reap", "--wait", LONG, "--dry-run", "--json", options=QUICK).json()
    assert (dry["dead"], dry["recovered"]) == ({far.owner: Reason.SILENT.value}, 1)
    assert bench.private(far) == [payload(1)]
    shown = cli("reap", "--wait", LONG, "--dry-run", options=QUICK).err
    assert re.search(r"Watching 1 silent worker on other hosts, up to \d+ s more", shown)
    begun = monotonic()
    result = cli("reap", "--wait", LONG, "--json", options=QUICK)
    done = result.json()
    assert done["dead"] == {far.owner: Reason.SILENT.value}
    assert "Watching" not in result.err, "a program has its document"
    assert monotonic() - begun < LONG, "it stays no longer than it has to"
    assert bench.queue() == [payload(1)]


def test_a_living_owner_of_another_host_is_not_waited_for(make_bench, cli):
    bench = make_bench(**QUICK)
    far, over = bench.owner(elsewhere()), threading.Event()
    bench.give(far.owner, "mail", [payload(1)])

    def live() -> None:
        while not over.wait(QUICK["heartbeat_interval"] / 4):
            bench.registry.heartbeat(far, 0, {})

    heart = threading.Thread(target=live)
    heart.start()
    try:
        begun = monotonic()
        assert cli("reap", "--wait", LONG, "--json", options=QUICK).json()["dead"] == {}
        assert monotonic() - begun < LONG
    finally:
        over.set()
        heart.join()
    done = cli("reap", "--wait", LONG, "--json", options=QUICK).json()
    assert done["dead"] == {far.owner: Reason.SILENT.value}, "the control"


def test_an_unknown_owner_is_registered_and_then_watched(make_bench, cli):
    bench, stranger = make_bench(**QUICK), "web-9|4|x"
    bench.give(stranger, "mail", [payload(1)])
    without = cli("reap", "--wait", LONG, "--json", options=QUICK).json()
    assert (without["registered"], without["owners"]) == (0, 0)
    done = cli("reap", "--full", "--wait", LONG, "--json", options=QUICK).json()
    assert (done["registered"], done["recovered"]) == (1, 1)
    assert done["dead"] == {stranger: Reason.SILENT.value}
    assert bench.queue() == [payload(1)]
