"""The page's views of changes: the audit list, and one change with its progress.

``page`` adds the routes. The modules with forms that change jobs call ``act``: it changes a few at
once, and leaves many to a ``BulkRunner``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ...inspector import COMPLETE, UNDER_WAY, AuditRecord, Inspector
from ..audit import change_of, mood_of, outcome_of, row_of
from ..bulk import BULK_ACTIONS, Batch, BulkAction, NoWorkerAnswered, carry_out
from .bulk_runner import BulkRunner
from .cache import PageCache
from .form import NOTHING_TO_DO, Form
from .frame import Frame, number_of
from .origins import page_root

#: Entries on one page of the list.
AUDIT_SHOWN = 100

#: Jobs that are changed before the form is answered; more are left to a thread.
AT_ONCE_MOST = 100

CANNOT_CONTINUE = (
    "This change cannot be continued: its list of jobs is gone, or it was made by a command. Lists "
    "are kept for a day, of the page's last ten unfinished changes. Select the jobs again, or "
    "repeat the command."
)

NONE_MATCHES = "No job matches: nothing can be changed."

Done = dict[str, Any]


class AuditPage:
    """The views of changes."""

    def __init__(self, cache: PageCache, frame: Frame) -> None:
        self._cache, self._frame = cache, frame
        self._runner = BulkRunner(cache.app, cache.clear)

    def all(self, request: Request) -> Response:
        first = number_of(request, "first")
        found = self._cache.audit(first, AUDIT_SHOWN)
        words: dict[str, Any] = {"found": found, "first": first, "mood_of": mood_of}
        return self._frame.render(request, "audit.html", outcome_of=outcome_of, **words)

    def single(self, request: Request) -> Response:
        found = self._cache.change(request.path_params["id"])
        if (row := self._row(found)) is None:
            raise HTTPException(404, "This change is not on the audit list any more.")
        words: dict[str, Any] = {"row": row, "mood": mood_of(row["state"])}
        words["can_continue"] = found["has_ids"] and row["state"] not in (COMPLETE, UNDER_WAY)
        words |= {"now": found["server_time"], "outcome": outcome_of(row)}
        return self._frame.render(request, "change.html", **words)

    def _row(self, found: dict[str, Any]) -> dict[str, Any] | None:
        """Return a change as this process knows it, if it carries it out; otherwise as Redis has
        it."""
        if (entry := self._runner.entry_of(found["id"])) is not None:
            return row_of(entry, entry.updated_at)  # not unfinished, however slow its batches are
        return row_of(found["entry"], found["now"]) if found["entry"] else None

    def change(self, request: Request, form: Form) -> Response:
        """Continue a change of many jobs that was interrupted."""
        self._frame.check_key(request, form)
        if form.get("do") != ["continue"]:
            raise HTTPException(400, NOTHING_TO_DO)
        self._cache.use(lambda inspector: self._resume(inspector, request.path_params["id"]))
        self._cache.clear()
        return RedirectResponse(f"{page_root(request)}audit/{request.path_params['id']}", 303)

    def _resume(self, inspector: Inspector, change: str) -> None:
        found = change_of(inspector, change)
        row, ids = self._row(found), inspector.bulk_ids.read(change)
        action = BULK_ACTIONS.get(row["action"]) if row else None
        if row is None or action is None or not ids:
            raise HTTPException(409, CANNOT_CONTINUE)
        if row["state"] in (COMPLETE, UNDER_WAY):
            state = row["state"]
            raise HTTPException(409, f"This change is {state}: there is nothing to continue.")
        entry = self._runner.entry_of(change) or found["entry"]
        record = AuditRecord(inspector.audit, replace(entry, state=UNDER_WAY, outcome=""))
        self._runner.start(inspector, lambda: record, action, ids)

    def act(
        self,
        request: Request,
        action: BulkAction,
        subject: str,
        ids: Sequence[str],
        view: Callable[[Request, Done], Response],
    ) -> Response:
        """Act on jobs, and answer with the outcome: on a view if they are few, otherwise on the
        page of the change, while a thread continues.

        Arguments:
            subject: of the audit entry.
            view: renders the view that sent the form, with the outcome.
        """
        if not ids:
            raise HTTPException(400, "No job is selected.")
        by = self._frame.author(request)
        if len(ids) > AT_ONCE_MOST:
            change = self._cache.use(
                lambda inspector: self._runner.start(
                    inspector,
                    lambda: inspector.audit.begin(by, action.name, subject, len(ids)),
                    action,
                    ids,
                )
            )
            return RedirectResponse(f"{page_root(request)}audit/{change}", 303)

        def change_few(inspector: Inspector) -> Batch:
            with inspector.audit.recording(by, action.name, subject, len(ids)) as record:
                return carry_out(self._cache.app, inspector, record, action, ids)

        try:
            result = self._cache.use(change_few)
        except NoWorkerAnswered as exc:
            result = Batch(0, len(ids), [str(exc)], action.verb)
        self._cache.clear()
        done = {"verb": result.verb, "count": result.done, "of": len(ids), "said": result.texts}
        return view(request, done)
