"""Mechanisms of the jobs in flight, each taken out by a change of one text of one function: the
fault harness has to find what is lost without it.

Apart from ``support/driver.py`` and ``support/interventions.py``, only this file knows how jobs in
flight are stored. If a function is rewritten, its rows fail by name until they fit again.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from celery_superfetch.owner.in_flight.in_flight import InFlight
from celery_superfetch.owner.in_flight.lost_claims import LostClaims
from celery_superfetch.owner.in_flight.pending import PendingLeases
from celery_superfetch.store.redis.pipeline import Pipeline


@dataclass(frozen=True)
class Mutant:
    """One text of a method, and the text in its place."""

    what: str
    owner: type
    method: str
    old: str
    new: str
    #: Scenes that find it.
    scenes: tuple[str, ...] = ()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Change the method, and restore it at the end."""
        method = getattr(self.owner, self.method)
        setattr(self.owner, self.method, self.changed)
        try:
            yield
        finally:
            setattr(self.owner, self.method, method)

    @cached_property
    def changed(self) -> Any:
        """The changed method. Its text is read from the disk at the first use: if the file was
        changed after it was imported, the text no longer fits the other code of this process."""
        method = getattr(self.owner, self.method)
        source = textwrap.dedent(inspect.getsource(method))
        assert source.count(self.old) == 1, f"{self.method} has not this text once: {self.old}"
        code = compile(
            source.replace(self.old, self.new),
            f"<{self.what}>",
            "exec",
            flags=__future__.annotations.compiler_flag,
        )
        names: dict[str, Any] = {}
        exec(code, vars(sys.modules[method.__module__]), names)
        return names[self.method]


MUTANTS = [
    Mutant(
        "acks and starts that had no reply are forgotten",
        PendingLeases, "_on_no_reply_to_settle", "self._unanswered += [*acks, *notes]", "pass",
        ("claim, start, finish",),
    ),
    Mutant(
        "acks and starts that were refused are forgotten",
        PendingLeases, "_on_settled", "self._unanswered += [*acks, *starts]", "pass",
        ("claim, start, finish",),
    ),
    Mutant(
        "claims whose reply was lost are not looked for",
        LostClaims, "_requeue_claims", "if id not in known]", "if not id]",
        ("claim, start, finish",),
    ),
    Mutant(
        "one check for lost claims, and no second",
        LostClaims, "reconcile", "monotonic() + LATE_CLAIM", "math.inf",
        ("claim, start, finish",),
    ),
    Mutant(
        "an ack that is sent again is announced as lost",
        PendingLeases, "_on_no_reply_to_settle", "or was_sent", "",
        ("claim, start, finish",),
    ),
    Mutant(
        "a lost job is announced twice",
        InFlight, "lose_all", "lease.is_taken_away = True", "pass",
        ("reaped while jobs run",),
    ),
    Mutant(
        "a job that this process has recovered is announced as lost",
        InFlight, "lose_all", "if lease.runs and not lease.has_run]", "if lease.runs]",
        ("a pool process is lost, and then the owner",),
    ),
    Mutant(
        "a lost job is announced again when its pool process is lost",
        InFlight, "lose", "if not lease.is_taken_away:", "if True:",
        ("a pool process is lost after the owner",),
    ),
    Mutant(
        "only an Exception gives up the connection",
        Pipeline, "send", "except BaseException:", "except Exception:",
        ("claim, start, finish",),
    ),
    Mutant(
        "only an Exception leaves a doubt",
        PendingLeases, "flush", "except BaseException:", "except Exception:",
        ("claim, start, finish",),
    ),
    Mutant(
        "only an Exception in the middle of a reconcile asks for another",
        LostClaims, "reconcile", "except BaseException:", "except Exception:",
        ("a reconcile after a lost claim",),
    ),
    Mutant(
        "an error reply beside a claim leaves no doubt",
        PendingLeases, "_checked",
        "self.needs_reconcile = self.needs_reconcile or last is not None", "pass",
        ("acks wait for a claim",),
    ),
    Mutant(
        "a lost reply leaves no doubt",
        PendingLeases, "flush", "self.needs_reconcile = True", "pass",
        ("claim, start, finish",),
    ),
    Mutant(
        "a signal handler may send in the midst of a send",
        PendingLeases, "flush", "if self._is_sending:", "if False:",
        ("claim, start, finish",),
    ),
    Mutant(
        "a job starts that a signal handler has requeued",
        InFlight, "start", "return deadline if lease.runs else 0.0", "return deadline",
        ("claim, start, finish",),
    ),
    Mutant(
        "a job that could not be started stays recorded as running",
        InFlight, "withdraw_start", "if lease.may_start:", "if False:",
        ("a start that was too late, and none after it",),
    ),
    Mutant(
        "a start record with an unread reply is taken for known",
        PendingLeases, "_settle", "lease.has_waiting_note = None", "pass",
        ("a start that was too late, and none after it",),
    ),
    Mutant(
        "jobs start although a reply was lost",
        InFlight, "start", "or self.needs_reconcile", "",
        ("claim, start, finish",),
    ),
    Mutant(
        "a claim records starts although a reply was lost",
        InFlight, "claim", "0 if pending.needs_reconcile or", "0 if",
        ("a claim that records starts",),
    ),
    Mutant(
        "a claim records starts beside a suspect that runs alone",
        InFlight, "claim", "or self.leases.solo", "",
        ("a suspect runs alone",),
    ),
    Mutant(
        "a requeue that had no reply is taken for a loss",
        PendingLeases, "_on_no_reply_to_move", "or was_sent", "",
        ("jobs are requeued",),
    ),
    Mutant(
        "a requeue or a park that had no reply is forgotten",
        PendingLeases, "_on_no_reply_to_move", "self._unanswered += some", "pass",
        ("jobs are requeued", "jobs are parked"),
    ),
    Mutant(
        "requeues that were refused are forgotten",
        PendingLeases, "_on_requeued", "self._unanswered += some", "pass",
        ("jobs are requeued",),
    ),
    Mutant(
        "a job that no channel has stays claimed",
        InFlight, "requeue_strays", "if strays:", "if False:",
        ("deliveries are interrupted",),
    ),
    Mutant(
        "replies that were lost are not reported",
        Pipeline, "_drop", "command.on_lost(number < sent)", "pass",
        ("claim, start, finish",),
    ),
    Mutant(
        "scripts that the server has forgotten are not sent again",
        Pipeline, "_run_unknown_again", "if unknown:", "if False:",
        ("jobs with counters",),
    ),
    Mutant(
        "requeues do not renew the x-expires of their queue",
        PendingLeases, "_requeues", "self.expires.get(some[0].job.queue_list, 0)", "0",
        ("queues that expire",),
    ),
]  # fmt: skip

#: No scene can be played with it: a control of the control.
BROKEN = Mutant(
    "no job can be claimed", InFlight, "claim", "pending = self.pending", "pending = missing"
)
