from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order, and what the tasks have done for it."""

    seconds = models.FloatField(help_text="how long packing takes")
    runs = models.IntegerField(default=0, help_text="how often a worker has begun to pack it")
    packed_by = models.CharField(max_length=100, blank=True, help_text="the worker that packed it")
    courier_calls = models.IntegerField(default=0, help_text="how often a courier was called")

    def __str__(self) -> str:
        state = f"packed by {self.packed_by}" if self.packed_by else "open"
        return f"order {self.pk}: {state}, {self.runs} runs, {self.courier_calls} courier calls"
