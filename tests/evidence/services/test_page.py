"""The page on managed services tells of each that a test stands for."""

from __future__ import annotations

import re
from pathlib import Path

from support.servers.services import DISCONNECTED, PROFILES

PAGE = Path(__file__).parents[3] / "docs" / "run" / "managed_redis.md"


def test_each_service_has_a_row_that_says_when_a_dead_worker_is_found():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    said = {
        name: "10 s" if "| 10 s |" in row else "60 s"
        for row in rows
        for name in re.findall(r"`(\w+)`", row.rstrip("| ").rpartition("|")[2])
    }
    known = {
        name: "10 s" if profile.far == DISCONNECTED else "60 s"
        for name, profile in PROFILES.items()
    }
    assert {name: said.get(name) for name in known} == known
