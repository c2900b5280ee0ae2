"""Settles jobs of a live owner that end neither by an ack nor by a plain requeue: their run was
lost (its pool process died, say), they are over a limit, or they cannot be read or run. Such a job
is *recovered* (moved to its queue, or to probation, and counted in its history) or *dead-lettered*
(moved to the dead set; in names of code: killed).

A worker's main process calls it, in the thread that handles the job (the consumer's loop, or a
thread of the pool): ``worker/request.py`` and ``worker/settling.py`` for a lost run,
``worker/job_limits.py`` before the delivery of a job over a limit, ``worker/unreadable_jobs.py``
for a message that Celery cannot receive, ``worker/unknown_tasks.py`` for a task that no worker
knows. In every consumer, the transport's deliveries call ``kill_unparseable`` for a payload that is
no message.

If the server refuses the call, a job that has not run is requeued after a pause. For a job that has
run, or if the server cannot be reached, ``settle`` of ``worker/settling.py`` defers the call, and
the maintenance thread repeats it. Before a delivery (``job_limits``, ``kill_unparseable``) nothing
is deferred: a lost connection is raised, and the job is requeued when its channel closes.

Each job moves, and is counted, in one script (``recover.lua``, ``kill.lua``). If the process dies
before the script, the job is in the owner's private list on the server, and the reaper decides on
it. If it dies after the script, only the log line and the signal are missing: ``kill.lua`` has also
queued the failure notification.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...model.dead_job import DeadJob
from ...model.humanize import command
from ...model.log_text import one_line_each
from ...model.strikes import Decision, Limits, Recovery, Running, decide
from ...reaper.recovery import Rules, decision_of, log_failed_rules, recoveries_of, report_outcome
from ...signals import job_killed
from ...store.redis.server import is_server_or_memory_error
from ...store.strike_counters import Notice, Outcome, StrikeCounters, notice_for
from .in_flight import InFlight
from .lease import Lease
from .suspect_claims import SuspectClaims

logger = one_line_each(logging.getLogger(__name__))

#: Tries to decide on a job whose counters change meanwhile: copies of one message share a history,
#: and another owner may have one of them.
DECISION_TRIES = 5


def kill_always(_: Recovery) -> Decision:
    """Return KILL: the caller has decided already."""
    return Decision.KILL


class Settlement:
    """The settlement of lost jobs of one process.

    Each method recovers or dead-letters a job of this process, and returns the dead job if it was
    dead-lettered. If it raises ``RedisError``, the lease stays, and the caller tries again, or
    requeues the job after a refusal. The job is in the private list, or it was moved and only the
    reply was lost; the next call finds out which.

    ``sender`` is the Celery app, as the sender of the signal ``job_recovering``, whose receivers
    may decide otherwise.
    """

    def __init__(self, in_flight: InFlight, suspects: SuspectClaims) -> None:
        self.in_flight, self.suspects = in_flight, suspects
        self.database, self.config = in_flight.database, in_flight.database.config
        self.strike_counters = StrikeCounters(in_flight.database)

    def recover_or_kill(
        self,
        lease: Lease,
        reason: str,
        sender: Any,
        limits: Limits,
        *,
        stopping: bool = False,
        not_blamed: bool = False,
    ) -> DeadJob | None:
        """Recover or dead-letter a job whose run was lost.

        Arguments:
            stopping: this worker is stopping, and may have ended the run: that counts as a stop,
                and not as a strike (a death that the job may have caused).
            not_blamed: the worker is at fault (no memory, no server): the job gets no strike.
        """
        # If the script's reply is lost, the job may be on its queue already. If a peer declares the
        # owner dead before the next try, ``lose_all`` announces the jobs that run: without this
        # mark it would announce this one as well.
        lease.has_run |= lease.runs
        running = Running(
            (lease.job.claim_id,), not_blamed=not_blamed, stopping=stopping, is_own_loss=True
        )
        done = self._settle(lease, reason, running, limits, partial(decision_of, sender=sender))
        return report_outcome(done, sender) if done else None

    def kill_if_over_limit(self, lease: Lease, sender: Any, limits: Limits) -> DeadJob | None:
        """Dead-letter a claimed job that is over a limit: on its strikes, its stops, or the deaths
        of owners in which it ran alongside other jobs. A receiver of ``job_recovering`` may decide
        otherwise. Return None if the job is to be delivered.

        Such a job is still on a queue in two cases. A worker of another app recovered it, and does
        not know the limits of its task. Or a stopping worker requeued it: a requeue counts a stop,
        and compares it with no limit.
        """

        def kill(rules: Rules) -> Outcome | None:
            for _ in range(DECISION_TRIES):
                recovery = self._recovery(lease, "", Running(), rules.limits)
                if not recovery.history:  # it was never recovered or stopped
                    return None
                latest = recovery.latest()
                kills = decide(latest) is Decision.KILL and rules.decide(latest) is Decision.KILL
                if not kills:
                    return None
                done = self._carry_out(lease, latest, Decision.KILL, notice=rules.notice)
                if done or lease.is_gone:
                    return done
            return None

        rules = Rules(limits, partial(decision_of, sender=sender), self.in_flight.executor.notice)
        done = self._by_rules(lease, rules, kill)
        return report_outcome(done, sender) if done else None

    def kill_without_notice(
        self, lease: Lease, reason: str, *, junk: bool = False
    ) -> DeadJob | None:
        """Dead-letter a job that never ran, without a failure notification. ``kill`` sends one;
        here the caller of this method decides whether the publisher is informed, and how.

        Arguments:
            junk: the payload is no message.

        Returns:
            the dead job; None if ownership was lost, or if in ``DECISION_TRIES`` tries the counters
            had always changed meanwhile: the job is requeued then.
        """
        changes = {"parsed": False} if junk else {"never_ran": True}
        limits = Limits.of(self.config)
        done = self._settle(lease, reason, Running(), limits, kill_always, notice=False, **changes)
        if done is None:
            return None
        dead = DeadJob.of(done.recovery, done.dead_id.decode())
        job_killed.send(sender=None, job=dead)
        return dead

    def kill(self, lease: Lease, reason: str, sender: Any) -> DeadJob | None:
        """Dead-letter a job that never ran, since Celery cannot receive or run it. Its caller gets
        a failure notification. Return the dead job; None if ownership was lost, or if in
        ``DECISION_TRIES`` tries the counters had always changed meanwhile: the job is requeued
        then."""
        limits = Limits.of(self.config)
        done = self._settle(lease, reason, Running(), limits, kill_always, never_ran=True)
        return report_outcome(done, sender) if done else None

    def kill_unparseable(self, lease: Lease) -> DeadJob | None:
        """Dead-letter a payload that is no message. If it were delivered, decoding it would end the
        worker."""
        if dead := self.kill_without_notice(lease, "unparseable payload", junk=True):
            logger.error(
                "Unparseable message moved to the dead set (queue=%s, bytes=%d, begins=%r). See it "
                "with `%s dead show %s`, and fix the program that sent it.",
                lease.job.queue_list,
                len(lease.job.payload),
                lease.job.payload[:40],
                command(),
                dead.id,
            )
        return dead

    def _settle(
        self,
        lease: Lease,
        reason: str,
        running: Running,
        limits: Limits,
        how: Callable[[Recovery], Decision],
        *,
        notice: bool = True,
        **changes: Any,
    ) -> Outcome | None:
        """Settle a job by ``_decide``; arguments as there."""
        rules = Rules(limits, how, self.in_flight.executor.notice if notice else None)

        def settle(rules: Rules) -> Outcome | None:
            return self._decide(lease, reason, running, rules, **changes)

        return self._by_rules(lease, rules, settle)

    def _by_rules(
        self, lease: Lease, rules: Rules, settle: Callable[[Rules], Outcome | None]
    ) -> Outcome | None:
        """Call ``settle`` with the app's rules, which call code of the user. If that raises, and
        neither the server nor a lack of memory is the cause, call it with the package's own rules.
        The error would repeat: the job would stay in the private list, or end one worker after
        another."""
        try:
            return settle(rules)
        except Exception as exc:
            if is_server_or_memory_error(exc):
                raise
            log_failed_rules(lease.job, exc)
        how = kill_always if rules.decide is kill_always else decide
        return settle(Rules(Limits.of(self.config), how, notice=None))

    def _decide(
        self, lease: Lease, reason: str, running: Running, rules: Rules, **changes: Any
    ) -> Outcome | None:
        """Decide on a job by ``rules`` and carry the decision out. If the job's counters have
        changed in between, decide again, ``DECISION_TRIES`` times in all. Return None if none of
        the decisions was carried out: the job is requeued then, unless ownership was lost.

        If an earlier call recovered the job and only its reply was lost, the job's history on the
        server has an entry of this claim. Then nothing is done, so that the job is not counted
        twice, and the outcome has the recovery as the server counted it. If the earlier call
        dead-lettered the job, its history is gone: ``_carry_out`` finds it in the dead set.
        """
        counted = {"owner": lease.job.owner, "claim": lease.job.claim_id}.items()
        for _ in range(DECISION_TRIES):
            recovery = replace(self._recovery(lease, reason, running, rules.limits), **changes)
            if any(counted <= entry.items() for entry in recovery.history):
                # An earlier call recovered the job, and its reply was lost. This worker may have
                # claimed the job again, as another claim.
                self.in_flight.drop(lease)
                latest = self._recovery(lease, reason, Running(), rules.limits).latest()
                return Outcome(latest, b"ok")
            decision = rules.decide(recovery)
            done = self._carry_out(lease, recovery, decision, notice=rules.notice)
            # If ownership was lost, the lease is gone. Another try would call the receivers of
            # ``job_recovering`` for a job that is another owner's.
            if done or lease.is_gone:
                return done
        # Other owners change its counters without end.
        self.in_flight.requeue([lease])
        return None

    def _details(self, reason: str) -> dict[str, str]:
        node = self.in_flight.executor.node
        return {"app_name": self.config.app_name, "node": node, "reason": reason}

    def _recovery(self, lease: Lease, reason: str, running: Running, limits: Limits) -> Recovery:
        [recovery] = recoveries_of(
            [lease.job], self.strike_counters, running, limits, **self._details(reason)
        )
        return recovery

    def _carry_out(
        self, lease: Lease, recovery: Recovery, decision: Decision, *, notice: Notice | None
    ) -> Outcome | None:
        """Carry a decision out. Return None if the job's counters have changed since the decision
        (the script answers ``recounted``), or ownership was lost (``moved``). If an earlier call
        dead-lettered the job and only its reply was lost, return the outcome of that call."""
        in_flight, queue_list = self.in_flight, lease.job.queue_list
        if lease.is_gone:
            return None
        expires = in_flight.pending.expires.get(queue_list, 0)
        try:
            [outcome] = self.strike_counters.carry_out(
                [(recovery, decision)], expires, marked=False, notice=notice
            )
        except BaseException:
            if decision is Decision.KILL:
                lease.unanswered_kill = recovery
            raise
        if isinstance(outcome.answer, Exception):
            raise outcome.answer
        if outcome.answer == b"moved":  # the private list no longer has the job
            if killed := self._killed_by_earlier_call(lease):
                in_flight.drop(lease)
                # ``report_outcome`` sends no signal if a notice was queued, which sends it. The
                # script's answer is lost: the notice was queued if one can be made.
                has_notice = bool(notice_for(notice, killed))
                return Outcome(killed, b"ok", killed.digest.encode(), int(has_notice))
            in_flight.lose(lease)
        if outcome.answer != b"ok":
            return None
        in_flight.drop(lease)
        if recovery.solo_runs and decision is Decision.RECOVER:
            self.suspects.add_lists([queue_list])
        return outcome

    def _killed_by_earlier_call(self, lease: Lease) -> Recovery | None:
        """Return the decision by which an earlier call dead-lettered a job that has left the
        private list; None if none did. Without this the job would be announced as lost ownership,
        and as a job that may run twice."""
        killed = lease.unanswered_kill
        if killed is None:
            return None
        [is_dead] = self.strike_counters.dead_set.contains([killed.digest])
        return killed if is_dead else None
