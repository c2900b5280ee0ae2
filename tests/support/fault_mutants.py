"""Mechanisms of the jobs in flight, each taken out by a change of one text of one function: the
fault harness has to find what is lost without it.

Beside ``support/driver.py`` and ``support/interventions.py`` only this file knows how jobs in
flight are kept. If a function is rewritten, its rows fail by name until they fit again.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery_superfetch.owner.in_flight.in_flight import InFlight
from celery_superfetch.owner.in_flight.lost_claims import LostClaims
from celery_superfetch.owner.in_flight.outbox import Outbox
from celery_superfetch.store.wire.scripts import Line


@dataclass(frozen=True)
class Mutant:
    """One text of a method, and the text in its place."""

    what: str
    owner: type
    method: str
    old: str
    new: str
    #: Scenes that find it, which are played before the others.
    scenes: tuple[str, ...] = ()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Change the method, and restore it at the end."""
        method = getattr(self.owner, self.method)
        changed = self._changed(method)
        setattr(self.owner, self.method, changed)
        try:
            yield
        finally:
            setattr(self.owner, self.method, method)

    def _changed(self, method: Any) -> Any:
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
        Outbox, "_unanswered", "self._send_again(parts)", "pass",
        ("claim, start, finish",),
    ),
    Mutant(
        "acks and starts that were refused are forgotten",
        Outbox, "_exchange", "self._send_again(refused)", "pass",
        ("claim, start, finish",),
    ),
    Mutant(
        "claims whose reply was lost are not looked for",
        LostClaims, "_requeue_unknown", "if id not in ours]", "if not id]",
        ("claim, start, finish",),
    ),
    Mutant(
        "one check for lost claims, and no second",
        LostClaims, "reconcile", "now + LATE_CLAIM", "math.inf",
        ("claim, start, finish",),
    ),
    Mutant(
        "an ack that is sent again is announced as lost",
        Outbox, "_unanswered",
        "lease.ack_was_sent = True", "pass",
        ("claim, start, finish",),
    ),
    Mutant(
        "a lost job is announced twice",
        InFlight, "lose_all", "lease.is_taken_away = True", "pass",
        ("reaped while jobs run",),
    ),
    Mutant(
        "a lost job is announced again when its pool process is lost",
        InFlight, "lose", "if not lease.is_taken_away:", "if True:",
        ("a pool process is lost after the owner",),
    ),
    Mutant(
        "only an Exception gives up the connection",
        Line, "exchange", "except BaseException:", "except Exception:",
        ("claim, start, finish",),
    ),
    Mutant(
        "only an Exception sends acks and starts again",
        Outbox, "_exchange", "except BaseException:", "except Exception:",
        ("claim, start, finish",),
    ),
    Mutant(
        "only an Exception in the middle of a reconcile asks for another",
        LostClaims, "reconcile", "except BaseException:", "except Exception:",
        ("a reconcile after a lost claim",),
    ),
    Mutant(
        "an error reply beside a claim leaves no doubt",
        Outbox, "_exchange", "self.doubt = self.doubt or last is not None", "pass",
        ("acks wait for a claim",),
    ),
    Mutant(
        "a lost reply leaves no doubt",
        Outbox, "_exchange", "self.doubt = True\n        if", "if",
        ("claim, start, finish",),
    ),
    Mutant(
        "a signal handler may use the connection that is in use",
        Line, "exchange",
        "connection, self._connection = self._connected(), None", "connection = self._connected()",
        ("claim, start, finish",),
    ),
    Mutant(
        "what a signal handler sent is taken for read",
        Outbox, "_exchange", "self._unanswered(self._sent)\n    self._sent = sent",
        "pass\n    self._sent = sent",
        ("claim, start, finish",),
    ),
    Mutant(
        "a job starts that a signal handler has requeued",
        InFlight, "start", "if not self.leases.apply(lease, Event.START):\n            return 0.0",
        "self.leases.apply(lease, Event.START)",
        ("claim, start, finish",),
    ),
    Mutant(
        "a start record may arrive behind what clears it",
        InFlight, "unrecord", "self._exchange([])", "pass",
        ("a start that was too late, and none after it",),
    ),
    Mutant(
        "a start record is sent again after it was cleared",
        Outbox, "_drop_start", "part.starting.pop(lease, None)", "pass",
        ("claim, start, finish",),
    ),
    Mutant(
        "jobs start although a reply was lost",
        InFlight, "start", "or self.doubt", "",
        ("claim, start, finish",),
    ),
    Mutant(
        "a claim records starts although a reply was lost",
        InFlight, "claim", "0 if self.doubt or", "0 if",
        ("a claim that records starts",),
    ),
    Mutant(
        "a claim records starts beside a suspect that runs alone",
        InFlight, "claim", "or self.leases.solo", "",
        ("a suspect runs alone",),
    ),
    Mutant(
        "a requeue that a signal handler repeats is taken for a loss",
        Outbox, "_returned", "if number in missing and not lease.is_gone:", "if number in missing:",
        ("jobs are requeued",),
    ),
    Mutant(
        "a requeue that had no reply is taken for a loss",
        Outbox, "_send_returns", "lease.requeue_was_sent = True", "pass",
        ("jobs are requeued",),
    ),
    Mutant(
        "scripts that the server has forgotten are not sent again",
        Line, "_again", "if unknown:", "if False:",
        ("claim, start, finish",),
    ),
    Mutant(
        "requeues that were refused are taken for done",
        Outbox, "_send_returns",
        "if not isinstance(reply, Exception):\n            self._returned(some, {*reply},",
        "if True:\n            self._returned(some, {},",
        ("jobs are requeued",),
    ),
    Mutant(
        "requeues do not renew the x-expires of their queue",
        Outbox, "_requeue_call", "self.expires.get(some[0].job.queue_list, 0)", "0",
        ("queues that expire",),
    ),
]  # fmt: skip
