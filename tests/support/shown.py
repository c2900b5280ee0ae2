"""Where a test notes the processes it has started; a failure's report shows their logs."""

from __future__ import annotations

import pytest

from support.process import Process

STARTED = pytest.StashKey[list[Process]]()
