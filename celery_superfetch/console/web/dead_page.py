"""The page's views of the dead set: its jobs, one of them, and the forms that retry and delete.

``page`` adds its routes. Bulk actions (``console/bulk.py``) retry and delete: if the process dies,
each job is in the dead set, on its queue, or deleted.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ...cli.auditing import jobs_of, subject_of_filter, subject_of_ids
from ...model.humanize import number
from ..bulk import DELETE, FIRST_ALONE, RETRY
from .audit_page import NONE_MATCHES, AuditPage
from .cache import PageCache
from .form import NOTHING_TO_DO, Form
from .frame import Frame, number_of

RETRY_EFFECT = "They run again, the oldest dead jobs first."
DELETE_EFFECT = "Deleted jobs cannot be retried."

DEAD_CONDITIONS = ("task", "queue", "reason")


class DeadPage:
    """The views of the dead set.

    Arguments:
        audit: carries the actions out.
    """

    def __init__(self, cache: PageCache, frame: Frame, audit: AuditPage) -> None:
        self._cache, self._frame, self._audit = cache, frame, audit

    def all(self, request: Request, done: Any = None) -> Response:
        at = number_of(request, "first")
        asked = _conditions(request)
        document = self._cache.dead_jobs.page(at, asked)
        words: dict[str, Any] = {"first": at, "asked": asked, "query": urlencode(asked)}
        return self._frame.render(request, "dead.html", found=document, done=done, **words)

    def single(self, request: Request) -> Response:
        job = self._cache.dead_jobs.single(request.path_params["id"])
        return self._frame.render(request, "job.html", job=job)

    def change(self, request: Request, form: Form) -> Response:
        """Retry or delete dead jobs. To act on all that match, or to delete, it asks once more."""
        ids, act = self._frame.ids_of(request, form), self._audit.act
        asked = _conditions(request)
        subject = subject_of_filter(asked)
        match form.get("do"):
            case ["retry"]:
                return act(request, RETRY, subject_of_ids(ids), ids, self.all)
            case ["retry all now"]:
                return act(request, RETRY, subject, ids, self.all)
            case ["delete for good"]:
                return act(request, DELETE, subject_of_ids(ids), ids, self.all)
            case ["delete all now"]:
                return act(request, DELETE, subject, ids, self.all)
            case ["delete"]:
                title = f"Delete {number(len(ids), 'job')} for good?"
                words = {"title": title, "text": DELETE_EFFECT, "button": "Delete"}
                return self._frame.confirm(request, "delete for good", ids, **words)
            case ["retry all" | "delete all" as do]:
                ids, is_cut = self._cache.dead_jobs.select(asked)
                if not ids:
                    raise HTTPException(409, NONE_MATCHES)
                jobs, further = jobs_of(len(ids), subject), FIRST_ALONE * is_cut
                words = {
                    "title": f"Requeue {jobs}?",
                    "text": RETRY_EFFECT + further,
                    "button": "Retry all",
                }
                if do == "delete all":
                    words = {"title": f"Delete {jobs} for good?", "text": DELETE_EFFECT + further}
                    words["button"] = "Delete all"
                return self._frame.confirm(request, f"{do} now", ids, **words)
        raise HTTPException(400, NOTHING_TO_DO)


def _conditions(request: Request) -> dict[str, str]:
    """Return the conditions on dead jobs in the page's address."""
    asked = {name: request.query_params.get(name, "").strip() for name in DEAD_CONDITIONS}
    return {name: text for name, text in asked.items() if text}
