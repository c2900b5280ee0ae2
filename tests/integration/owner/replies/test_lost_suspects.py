"""A lost reply may have brought a suspect: nothing runs beside it that would share its blame."""

from __future__ import annotations

from celery_superfetch.model.job import digest
from support.servers.faults import unheard
from support.waiting import eventually
from support.workers.bench import payload


def test_no_suspect_is_claimed_beside_one_that_a_lost_reply_may_have_brought(server, hasty, owner):
    """Another channel of the process had passed its look at what is in doubt by then. With both
    recorded, a death would blame neither. The control: once the doubt is gone, one has its turn."""
    held, first, second = hasty.driver, payload("first"), payload("second")
    hasty.client.lpush(hasty.keys.probation("mail"), first, second)
    unheard(server, lambda: held.claim_suspect(owner.owner, "mail"))
    eventually(lambda: hasty.private(owner) == [first])
    assert held.claim_suspect(owner.owner, "mail") is None
    assert hasty.recorded(owner) == [digest(first)], "it may kill whoever decodes it"
    assert held.reconcile(owner.owner, {"mail": 0}) == 1
    assert hasty.recorded(owner) == []
    claimed = held.claim_suspect(owner.owner, "mail")
    assert claimed is not None
    assert held.solo == claimed.job


def test_what_is_claimed_beside_a_suspect_that_a_lost_reply_may_have_brought_waits(
    server, hasty, owner
):
    """The control: with the doubt gone, as many as are asked for start with their claim."""
    held, suspect = hasty.driver, payload("suspect")
    hasty.client.lpush(hasty.keys.probation("mail"), suspect)
    unheard(server, lambda: held.claim_suspect(owner.owner, "mail"))
    eventually(lambda: hasty.private(owner) == [suspect])
    for number, started in ((1, 0), (2, 1)):
        hasty.push("mail", payload(number))
        claims = held.claim(owner.owner, ["mail"], 1, 1, [], starts=1)
        assert (len(claims.jobs), claims.started) == (1, started)
        held.reconcile(owner.owner, {"mail": 0})


def test_nothing_starts_while_a_lost_reply_may_speak_of_a_suspect(server, hasty, owner):
    """B. Beside it the crash of what starts would be the suspect's, which nobody has begun. The
    control: once the doubt is gone, the job starts."""
    held, one, suspect = hasty.driver, payload(1), payload("suspect")
    [(job, _)] = hasty.take(owner, one)
    hasty.client.lpush(hasty.keys.probation("mail"), suspect)
    unheard(server, lambda: held.claim_suspect(owner.owner, "mail"))
    eventually(lambda: hasty.private(owner) == [suspect, one])
    assert not held.start(job)
    assert held.reconcile(owner.owner, {"mail": 0}) == 1
    assert held.start(job)
    held.flush()
    assert hasty.recorded(owner) == [digest(one)]


def test_a_claim_for_a_suspect_that_comes_late_is_not_alone_with_what_starts(hasty, owner):
    """A network that stood still brought it after the doubt was cleared."""
    held, one, suspect = hasty.driver, payload(1), payload("suspect")
    [(job, _)] = hasty.take(owner, one)
    hasty.client.lpush(hasty.keys.probation("mail"), suspect)
    assert hasty.run(hasty.lists.claim_suspect(owner.owner, "mail"))[0] == b"ok"
    assert held.start(job)
    held.flush()
    assert hasty.recorded(owner) == sorted(map(digest, (one, suspect)))
