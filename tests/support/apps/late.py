"""A task of the shop's that a worker does not know before it is told to load this module."""

from __future__ import annotations

from support.apps.shop import app

app.task(name="late.kill_child", shared=False)(app.tasks["shop.kill_child"].run)
