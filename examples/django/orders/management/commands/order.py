"""`python manage.py order 4` makes four orders; without a number the command lists all."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from orders.models import Order
from orders.tasks import call_courier, pack


class Command(BaseCommand):
    help = "Make orders and send their jobs; or list all orders."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("count", nargs="?", type=int, default=0)
        parser.add_argument("--seconds", type=float, default=10.0, help="how long packing takes")
        parser.add_argument("--courier", action="store_true", help="call a courier, too")

    def handle(self, *args: Any, count: int, seconds: float, courier: bool, **kwargs: Any) -> None:
        for _ in range(count):
            # The jobs are sent after the commit: a worker that starts at once finds the row.
            with transaction.atomic():
                order = Order.objects.create(seconds=seconds)
                if courier:
                    call_courier.delay_on_commit(order.pk)
                pack.delay_on_commit(order.pk)
        for order in Order.objects.order_by("pk"):
            self.stdout.write(str(order))
