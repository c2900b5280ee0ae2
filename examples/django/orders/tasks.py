"""One task that may run twice, and one that must not."""

from __future__ import annotations

import time

from celery import Task, shared_task
from django.db.models import F

from .models import Order


@shared_task(bind=True)
def pack(self: Task, pk: int) -> str:
    """Pack an order. If the worker is killed, another run begins again: the update at the end
    changes only an order that is still open."""
    Order.objects.filter(pk=pk).update(runs=F("runs") + 1)
    time.sleep(Order.objects.get(pk=pk).seconds)
    Order.objects.filter(pk=pk, packed_by="").update(packed_by=self.request.hostname)
    return Order.objects.get(pk=pk).packed_by


@shared_task(acks_late=False)
def call_courier(pk: int) -> None:
    """Call a courier, at most once: the job is acked before it runs, and lost with its worker."""
    Order.objects.filter(pk=pk).update(courier_calls=F("courier_calls") + 1)
    time.sleep(Order.objects.get(pk=pk).seconds)
