"""The shop, on a version in which something has another name, or another shape.

RENAMED names it, as `module:Class.name`; RESHAPED=1 leaves something there that takes no argument.
"""

from __future__ import annotations

import os
from functools import reduce
from importlib import import_module

from support.apps.build import build_app

app = build_app(os.environ)

module, _, path = os.environ["RENAMED"].partition(":")
*owners, name = path.split(".")
owner = reduce(getattr, owners, import_module(module))
if os.environ.get("RESHAPED"):
    setattr(owner, name, lambda: None)
else:
    delattr(owner, name)
