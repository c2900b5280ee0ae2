"""The reports for Celery: each script shows its fault, and no longer with the patch beside it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import celery
import pytest

from support.house import HERE
from support.pages.blocks import blocks
from support.servers.server import Server

PAGE = HERE / "docs" / "contribute" / "reports.md"
POOL, *BLOCKS = [block.text for block in blocks(PAGE)]

#: What each script of the page prints, in their order: by Celery as it is, and with its patch.
PRINTED = [
    (r"told: \[\]", r"told: \[0\]"),
    (r"told: \[\]", r"told: \[20000000\]"),
    (r"the pool has ended: False", r"the pool has ended: True"),
    (r"(?s)(job \w).*\1", r"(?s)\A(?!.*(job \w).*\1).*job b"),
    (r"UnpicklingError|EOFError", r"(?s)\A(?!.*Error).*spam"),
    (r"not watched: [1-9]", r"not watched: 0\nthe worker goes on"),
    (r"the pool has ended: False", r"the pool has ended: True"),
    (r"bodies on the queue: 0", r"bodies on the queue: 1"),
]
REPORTS = [
    pytest.param(script, patch, *printed, id=title)
    for script, patch, printed, title in zip(
        BLOCKS[::2],
        BLOCKS[1::2],
        PRINTED,
        re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE),
        strict=True,
    )
]


def output(script: str, folder: Path) -> str:
    """What a script prints that is run in a folder, whose modules come before those installed."""
    (folder / "script.py").write_text(script)
    try:
        return output_of_run(folder)
    except subprocess.TimeoutExpired:
        # The scripts are short, and give Celery's pool a second to start: on a busy machine that
        # may be too little, and then the event that a script waits for never comes.
        return output_of_run(folder)


def output_of_run(folder: Path) -> str:
    """What one run of the script in a folder prints."""
    with Server() as server:
        run = subprocess.Popen(
            [sys.executable, "script.py", server.url()],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            run.wait(45)
        finally:  # a pool's processes may be left, and would hold the pipe
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
        printed, _ = run.communicate()
    return printed


@pytest.mark.skipif(celery.VERSION[:2] != (5, 7), reason="the reports are on Celery 5.7")
@pytest.mark.parametrize(("script", "patch", "fault", "mended"), REPORTS)
def test_a_report_shows_its_fault_and_its_patch_ends_it(tmp_path, script, patch, fault, mended):
    (tmp_path / "pool.py").write_text(POOL)
    assert re.search(fault, output(script, tmp_path))
    shutil.copytree(Path(celery.__file__).parent, tmp_path / "celery")
    subprocess.run(["patch", "-p1"], cwd=tmp_path, input=patch, text=True, check=True)
    assert re.search(mended, output(script, tmp_path))
