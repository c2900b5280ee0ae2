"""Jobs of a live owner that end otherwise than by ack or requeue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...model.dead_job import DeadJob
from ...model.job import Carried, Job, digest, parse
from ...model.strikes import Blame, Decision, Limits, Recovery, Running, decide
from ...model.words import command
from ...reaper.judge import Judge, ask, tell, warn_of
from ...signals import job_killed
from ...store.counters import Outcome
from .in_flight import InFlight

logger = logging.getLogger(__name__)

DECISIONS = 5  # times that a decision is taken, where others change the counters meanwhile


class LostRuns(Judge):
    """Recovers or kills jobs that this process holds. Each method returns the dead job if it has
    killed one. Where one raises ``RedisError`` the job stays held. ``sender``: the Celery app, for
    ``job_recovering``."""

    def __init__(self, in_flight: InFlight) -> None:
        super().__init__(in_flight.database)
        self.in_flight = in_flight

    def recover_or_kill(
        self,
        job: Job,
        reason: str,
        sender: Any,
        limits: Limits,
        *,
        stopping: bool = False,
        excused: bool = False,
    ) -> DeadJob | None:
        """Settle a job whose run was lost. ``stopping``: the process has been told to stop, and so
        perhaps its children; ``excused``: the process is at fault, and the job gets no strike."""
        running = Running((job.claim_id,), excused=excused, stopping=stopping, own=True)
        done = self._settle(job, reason, running, limits, partial(ask, sender=sender))
        return tell(done, sender) if done else None

    def kill_if_over_limit(self, job: Job, sender: Any, limits: Limits) -> DeadJob | None:
        """Kill a claimed job that has used up its strikes or stops, unless a receiver spares it.
        It came back all the same: the worker that recovered it was another app's, which does not
        know its limits, or a worker gave it back as it stopped, and decides nothing then."""
        for _ in range(DECISIONS):
            recovery = self._recovery(job, "", Running(), limits)
            counted = recovery.recoveries > 1 or recovery.stops
            if not counted or not recovery.history:
                return None
            latest = recovery.latest()
            if decide(latest) is not Decision.KILL or ask(latest, sender) is not Decision.KILL:
                return None
            if done := self._carry_out(latest, Decision.KILL):
                return tell(done, sender)
        return None

    def sent_anew(
        self, job: Job, reason: str, sender: Any, limits: Limits, *, blame: Blame, settled: bool
    ) -> Carried | DeadJob | None:
        """Judge a job whose pool child was lost, and that is about to be sent as a new message:
        what that has to carry; the dead job, if this was its last strike; or None when it must not
        be sent, since it was taken away, or was ``settled`` before it ran (so that nothing is left
        to move) and is out of strikes. ``blame``: NONE when the loss is nobody's fault."""
        self.in_flight.confirm_starts()
        for _ in range(DECISIONS):
            if not settled:
                if job not in self.in_flight.jobs:
                    return None
                if not self.in_flight.lists.has(job):
                    self.in_flight.lose(job)
                    return None
            now = self.database.server_time() // 1000
            envelope = parse(job.payload)
            carried = envelope.carried.within(self.config.strike_window, now)
            envelope = envelope._replace(carried=carried)
            [counters] = self.counters([digest(job.payload)])
            recovery = Recovery.of(
                job,
                envelope,
                counters,
                own=True,
                **self._details(reason),
                blame=blame,
                limits=limits,
            )
            if blame is Blame.NONE or ask(recovery, sender) is not Decision.KILL:
                break
            if settled:
                return None
            if done := self._carry_out(recovery, Decision.KILL):
                return tell(done, sender)
        history = recovery.history
        if blame is not Blame.NONE:
            warn_of(replace(recovery, probation=0))
            history = (*history, {**recovery.event, "at": now})
        since = carried.since or next((entry["at"] for entry in history if "at" in entry), now)
        return Carried(recovery.strikes, since, history)

    def bury(self, job: Job, reason: str, *, junk: bool = False) -> DeadJob | None:
        """Kill it, whoever is to blame (None: it was taken away); who asked tells its caller."""
        changes, limits = {"parsed": False} if junk else {}, Limits.of(self.config)
        done = self._settle(
            job, reason, Running(), limits, lambda _: Decision.KILL, notice=False, **changes
        )
        if done is None:
            return None
        dead = DeadJob.of(done.recovery, done.dead_id.decode())
        job_killed.send(sender=None, job=dead)
        return dead

    def kill(self, job: Job, reason: str, sender: Any) -> DeadJob | None:
        """Move a job to the dead set that somebody wants there, also while it runs."""
        self.in_flight.confirm_starts()
        limits = Limits.of(self.config)
        for _ in range(DECISIONS):
            if done := self._carry_out(
                self._recovery(job, reason, Running(), limits), Decision.KILL
            ):
                return tell(done, sender)
        return None

    def quarantine(self, job: Job) -> DeadJob | None:
        """Move a payload that is no message to the dead set: it would end us."""
        if dead := self.bury(job, "unparseable payload", junk=True):
            logger.error(
                "An item on queue %s was put into quarantine: unparseable payload (%d bytes, "
                "starts with %r). Look at it with `%s dead show %s`, then mend whoever wrote it.",
                job.queue_list,
                len(job.payload),
                job.payload[:40],
                command(),
                dead.id,
            )
        return dead

    def _settle(
        self,
        job: Job,
        reason: str,
        running: Running,
        limits: Limits,
        how: Callable[[Recovery], Decision],
        *,
        notice: bool = True,
        **changes: Any,
    ) -> Outcome | None:
        """Decide on a job until nobody has counted it meanwhile; None where no decision held."""
        self.in_flight.confirm_starts()
        counted = {"owner": job.owner, "claim": job.claim_id}.items()
        for _ in range(DECISIONS):
            recovery = replace(self._recovery(job, reason, running, limits), **changes)
            if any(counted <= entry.items() for entry in recovery.history):
                # The answer was lost. It went back, and may be another claim of ours by now.
                self.in_flight.drop(job)
                return Outcome(self._recovery(job, reason, Running(), limits).latest(), b"ok")
            if done := self._carry_out(recovery, how(recovery), notice=notice):
                return done
        # The job was taken away, or somebody counts it without end.
        self.in_flight.end(job)
        self.in_flight.requeue([job])
        return None

    def _details(self, reason: str) -> dict[str, str]:
        node = self.in_flight.runner.node
        return {"app_name": self.config.app_name, "node": node, "reason": reason}

    def _recovery(self, job: Job, reason: str, running: Running, limits: Limits) -> Recovery:
        return self.recoveries([job], running, limits, **self._details(reason))[0]

    def _carry_out(
        self, recovery: Recovery, decision: Decision, *, notice: bool = True
    ) -> Outcome | None:
        """Do it; None when the decision no longer held, or the job was taken away."""
        job, in_flight = recovery.job, self.in_flight
        if job not in in_flight.jobs:
            return None
        expires = in_flight.expires.get(job.queue_list, 0)
        make = in_flight.runner.notice if notice else None
        [outcome] = self.carry_out([(recovery, decision)], expires, marked=False, notice=make)
        if isinstance(outcome.answer, Exception):
            raise outcome.answer
        if outcome.answer == b"moved":
            in_flight.lose(job)
        if outcome.answer != b"ok":
            return None
        in_flight.drop(job)
        if recovery.probation and decision is Decision.RECOVER:
            in_flight.suspects |= {job.queue_list}
        return outcome
