"""Runs the reap task, which recovers the jobs of dead workers (``reap_task.py``), without Celery's
signals of a task: these are for users' tasks.

Celery's worker calls ``__trace__`` in the pool, in place of its own tracer. The reap task is acked
before it runs (``acks_late=False``), so a run that dies with its process is not repeated: beat
sends the task again at the next interval.

Foreign names:

celery app.
    run a task without its signals: task:Task.__trace__
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from celery import Task
from celery.app.task import Context
from celery.utils.log import get_logger

from ..model.log_text import one_line_each

logger = one_line_each(get_logger(__name__))


class QuietTask(Task):
    """A task whose runs send no ``task_prerun``, ``task_postrun``, ``task_success`` and
    ``task_failure``: users' receivers would open a database connection, count and trace for each.
    It has no result, no retry and no callbacks. ``apply()``, called by hand, makes a tracer of
    Celery's for itself, and sends the signals."""

    @property
    def __trace__(self) -> Any:
        """The function that Celery calls in a pool to run the task."""
        return self._run_quietly

    @__trace__.setter
    def __trace__(self, tracer: Any) -> None:
        """Ignore Celery's own tracer, which each process sets: it would send the signals."""

    def _run_quietly(self, uuid: str, args: Any, kwargs: Any, request: Any = None) -> Any:
        """Run the task and return the tuple that Celery's tracer returns for a success. An error is
        only logged: the next run is another try."""
        started, text = monotonic(), ""
        context = Context(request or {}, args=args, called_directly=False, kwargs=kwargs)
        self.request_stack.push(context)
        try:
            text = repr(self.run(*args, **kwargs))
            took = monotonic() - started
            logger.debug("Task %s[%s] succeeded in %ss: %s", self.name, uuid, took, text)
        except Exception:
            logger.exception(
                "Task %s[%s] failed; beat sends the next one. Workers still recover the jobs of "
                "dead workers. The traceback follows.",
                self.name,
                uuid,
            )
        finally:
            self.request_stack.pop()
        return None, None, monotonic() - started, text
