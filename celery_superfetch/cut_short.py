"""Jobs of a live owner that end otherwise than by ack or requeue."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, cast

from .dead_set import DeadJob, DeadSet, dead_job
from .in_flight import InFlight
from .job import Carried, Envelope, Job, digest, parse
from .recoveries import Recoveries
from .recovery import Blame, Decision, Limits, Recovery
from .signals import ask, job_killed, job_recovered

logger = logging.getLogger(__name__)

#: How often a decision is taken anew when another process changed the counters meanwhile.
DECISIONS = 5


class CutShort:
    """Recovers or kills jobs that this process holds and whose run was cut short."""

    def __init__(self, in_flight: InFlight) -> None:
        lists = in_flight.lists
        self.in_flight = in_flight
        self.config = in_flight.config
        self.recoveries = Recoveries(lists.client, lists.keys, lists.config)
        self.dead_set = DeadSet(lists.client, lists.keys, lists.config)

    def recover_or_kill(
        self, job: Job, reason: str, sender: Any, limits: Limits | None = None
    ) -> DeadJob | None:
        """Recover a job whose pool child was lost, or kill it; the dead job if it was killed.

        Whoever asked announces it (``job_killed`` included).

        Arguments:
            sender: the Celery app, for the receivers of ``job_recovering``.
            limits: when a job is killed; None for the options' alone.

        Raises:
            redis.exceptions.RedisError: the job stays in its private list, still held.
        """
        self.in_flight.bring_back(job)
        for _ in range(DECISIONS):
            recovery = self._recovery(job, reason, Blame.EXACT, limits)
            kill = ask(recovery, sender) is Decision.KILL
            done = self._carry_out(recovery, kill)
            if done is None:
                continue
            if not kill:
                if recovery.probation:
                    self.in_flight.probation |= {job.queue_list}
                job_recovered.send(sender=sender, recovery=recovery)
                return None
            return dead_job(recovery, reason, done)
        self._settle_otherwise(job)
        return None

    def sent_anew(
        self,
        job: Job,
        reason: str,
        sender: Any,
        limits: Limits | None = None,
        *,
        blame: Blame,
        settled: bool,
    ) -> Carried | DeadJob | None:
        """Judge a job whose pool child was lost, and that is about to be sent as a new message.

        Whoever asked announces its death.

        Arguments:
            limits: as for ``recover_or_kill``.
            blame: NONE when the loss is nobody's fault.
            settled: it was acked before it ran, so there is nothing left to move.

        Returns:
            what the new message has to carry; the dead job, if this was its last strike; None
            when it must not be sent: it was taken away, or it is settled and out of strikes.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked; nothing has changed.
        """
        self.in_flight.bring_back(job)
        for _ in range(DECISIONS):
            if not (settled or self._is_ours(job)):
                return None
            now = self._now()
            envelope = parse(job.payload)
            carried = envelope.carried.within(self.config.strike_window, now)
            envelope = replace(envelope, carried=carried)
            recovery = self._recovery(job, reason, blame, limits, envelope)
            if blame is Blame.NONE or ask(recovery, sender) is not Decision.KILL:
                break
            if settled:
                return None
            done = self._carry_out(recovery, kill=True)
            if done is not None:
                return dead_job(recovery, reason, done)
        history = recovery.history
        if blame is not Blame.NONE:
            owner = job.owner
            history += ({"owner": owner, "reason": reason, "strike": blame.value, "at": now},)
        since = carried.since or next((entry["at"] for entry in history if "at" in entry), now)
        return Carried(recovery.strikes, since, history)

    def _now(self) -> int:
        return self.in_flight.lists.client.time()[0]

    def _is_ours(self, job: Job) -> bool:
        """Whether a job is still in its private list; announces one that was taken away."""
        if not self.in_flight.holds(job):
            return False
        lists = self.in_flight.lists
        private = lists.keys.private(job.owner, job.queue_list)
        if lists.client.lpos(private, cast("str", job.payload)) is None:
            self.in_flight.let_go(job)
            return False
        return True

    def quarantine(self, job: Job) -> None:
        """Move a payload that is no message to the dead set: delivering it would end us.

        Raises:
            redis.exceptions.RedisError: it stays in its private list.
        """
        for _ in range(DECISIONS):
            recovery = self._recovery(job, "unparseable payload", Blame.NONE)
            done = self._carry_out(recovery, kill=True)
            if done is not None:
                break
        else:
            return self._settle_otherwise(job)
        logger.error(
            "An item on queue %s is not a kombu message (%d bytes, starts with %r). It was "
            "moved to the dead set as %s: look with `celery superfetch dead show`, then mend "
            "whoever wrote it.",
            job.queue_list,
            len(job.payload),
            job.payload[:40],
            done,
        )
        job_killed.send(sender=None, job=dead_job(recovery, recovery.reason, done))

    def _settle_otherwise(self, job: Job) -> None:
        """No decision held. The job was taken away, or somebody counts it without end."""
        self.in_flight.ended(job)
        self.in_flight.requeue([job])

    def _recovery(
        self,
        job: Job,
        reason: str,
        blame: Blame,
        limits: Limits | None = None,
        envelope: Envelope | None = None,
    ) -> Recovery:
        return Recovery.of(
            job,
            envelope or parse(job.payload),
            self.recoveries.counters([digest(job.payload)])[0],
            reason=reason,
            app_name=self.config.app_name,
            blame=blame,
            limits=limits or Limits.of(self.config),
        )

    def _carry_out(self, recovery: Recovery, kill: bool) -> str | None:
        """Do it; None when the decision no longer held, or the job was taken away.

        Returns:
            the id of a killed job in the dead set; empty for a recovered one.
        """
        job = recovery.job
        if not self.in_flight.holds(job):
            return None
        if kill:
            call = self.dead_set.kill(recovery, recovery.reason, marked=False)
        else:
            expires = self.in_flight.expires.get(job.queue_list, 0)
            call = self.recoveries.recover([recovery], expires, marked=False)
        reply = self.in_flight.scripts.run(call.name, call.keys, call.args)
        outcome, *id = reply
        if outcome == b"moved":
            self.in_flight.let_go(job)
        if outcome != b"ok":
            return None
        self.in_flight.drop(job)
        return id[0].decode() if id else ""
