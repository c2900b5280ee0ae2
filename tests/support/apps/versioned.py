"""The shop, on another version: VERSION is as `kombu==5.8.0`."""

from __future__ import annotations

import os
from importlib import import_module

from support.apps.build import build_app

app = build_app(os.environ)

project, _, version = os.environ["VERSION"].partition("==")
import_module(project).__version__ = version
