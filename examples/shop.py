"""The app of the recipes: `celery -A shop worker`. Broker and results come from the environment
(CELERY_BROKER_URL, CELERY_RESULT_BACKEND), which Celery and `superfetch-check` read alike."""

from __future__ import annotations

import time

from celery import Celery, Task

import celery_superfetch

app = Celery("shop")
app.conf.update(
    # The longest job decides how long a worker needs to stop. All recipes give it longer than this.
    task_time_limit=240,
    # What waits stays on its queue, where KEDA counts it, and not behind a long job in a worker.
    worker_prefetch_multiplier=1,
)
# No priorities: a queue is one list in Redis, by its own name, and KEDA looks at one list.
celery_superfetch.install(app, priority_steps=[0])


@app.task(bind=True)
def work(self: Task, seconds: float) -> str:
    """A job that takes its time; its result says which worker came to its end."""
    time.sleep(seconds)
    return str(self.request.hostname)
