"""The page's forms that revoke jobs: those in flight, scheduled or on probation, and the waiting
ones of a queue.

``page`` calls it. A revoke is Celery's: each worker keeps the task ids in memory, and discards the
jobs. If this process dies before it is sent, nothing has happened. If it dies between two messages
of a revoke of many jobs, the jobs of the later ones are not revoked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ...cli.auditing import subject_of_filter, subject_of_ids
from ...inspector import Inspector
from ...model.humanize import number
from ..bulk import FIRST_ALONE, REVOKE, TERMINATE, BulkAction, first_that_fit, waiting_ids
from ..jobs import JobsSnapshot
from .audit_page import NONE_MATCHES, AuditPage
from .cache import PageCache
from .filters import JOB_STATES
from .form import NOTHING_TO_DO, Form
from .frame import Frame
from .jobs_page import AskedJobs
from .queue_page import NO_QUEUE

REVOKED = (
    "The job is not moved to the dead set, and does not run again. Workers keep the revoked task "
    "id in memory, and forget it when all restart, unless they use --statedb."
)
WAITING_STAYS = "Waiting jobs stay on the queue until a worker claims them, and discards them."


View = Callable[..., Response]

#: Value of a button -> the action, and whether it is a question.
REVOKE_ORDERS: dict[str, tuple[BulkAction, bool]] = {
    "revoke": (REVOKE, True),
    "revoke all": (REVOKE, True),
    "terminate": (TERMINATE, True),
    "terminate all": (TERMINATE, True),
    "revoke now": (REVOKE, False),
    "revoke all now": (REVOKE, False),
    "terminate now": (TERMINATE, False),
    "terminate all now": (TERMINATE, False),
}


class RevokePage:
    """The forms that revoke jobs.

    Arguments:
        audit: carries the actions out.
    """

    def __init__(self, cache: PageCache, frame: Frame, audit: AuditPage) -> None:
        self._cache, self._frame, self._audit = cache, frame, audit

    def jobs(self, request: Request, form: Form, view: View) -> Response:
        """Revoke jobs by their task ids, and terminate those that run; the page asks once more.
        Jobs of one task id are revoked together. ``view``: renders the list of jobs."""
        asked = AskedJobs.of(request.query_params)
        subject = subject_of_filter({"state": JOB_STATES[asked.state], **asked.typed})

        def select(inspector: Inspector) -> tuple[list[str], bool]:
            return first_that_fit(JobsSnapshot(inspector, asked.which).task_ids())

        return self._answer(request, form, view, subject, select)

    def waiting(self, request: Request, form: Form, view: View) -> Response:
        """Revoke the jobs that wait on a queue; the page asks once more. ``view``: renders the
        queue."""
        name = request.query_params.get("name", "")
        queue = self._cache.queue(name)
        if not queue:
            raise HTTPException(404, NO_QUEUE)
        lists = [row["list"] for row in queue["lists"]]

        def select(inspector: Inspector) -> tuple[list[str], bool]:
            return first_that_fit(waiting_ids(inspector, lists))

        return self._answer(request, form, view, f"waiting on queue {name}", select, WAITING_STAYS)

    def _answer(
        self,
        request: Request,
        form: Form,
        view: View,
        subject: str,
        select: Callable[[Inspector], tuple[list[str], bool]],
        effect: str = "",
    ) -> Response:
        ids = self._frame.ids_of(request, form)
        [do] = form.get("do", [""])[:1]
        if do not in REVOKE_ORDERS:
            raise HTTPException(400, NOTHING_TO_DO)
        action, is_question = REVOKE_ORDERS[do]
        is_all = "all" in do.split()
        if is_question:
            is_cut = False
            if is_all:
                ids, is_cut = self._cache.use(select)
                if not ids:
                    raise HTTPException(409, NONE_MATCHES)
            jobs = number(len(ids), "job") + (f" ({subject})" if is_all else "")
            return self._question(request, do, ids, jobs, effect + FIRST_ALONE * is_cut)
        subject = subject if is_all else subject_of_ids(ids)
        return self._audit.act(request, action, subject, ids, view)

    def _question(
        self, request: Request, do: str, ids: Sequence[str], jobs: str, effect: str
    ) -> Response:
        is_kill = do.startswith("terminate")
        title = f"Revoke and terminate {jobs}?" if is_kill else f"Revoke {jobs}?"
        text = "Running jobs continue."
        if is_kill:
            text = "Running jobs are ended if their pool can end one."
        text = " ".join(filter(None, (text, effect, REVOKED)))
        words: dict[str, Any] = {"title": title, "text": text}
        words["button"] = "Terminate" if is_kill else "Revoke"
        section = "queues" if request.scope["path"].endswith("/queues") else "jobs"
        return self._frame.confirm(request, f"{do} now", ids, section=section, **words)
