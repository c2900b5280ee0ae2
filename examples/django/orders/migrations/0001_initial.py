from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies: ClassVar = []
    operations: ClassVar = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("seconds", models.FloatField(help_text="how long packing takes")),
                (
                    "runs",
                    models.IntegerField(
                        default=0, help_text="how often a worker has begun to pack it"
                    ),
                ),
                (
                    "packed_by",
                    models.CharField(
                        blank=True, help_text="the worker that packed it", max_length=100
                    ),
                ),
                (
                    "courier_calls",
                    models.IntegerField(default=0, help_text="how often a courier was called"),
                ),
            ],
        ),
    ]
