"""The site is built without a warning."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from support.house import HERE


@pytest.mark.skipif(not importlib.util.find_spec("sphinx"), reason="needs the extra `docs`")
@pytest.mark.timeout(300)
def test_it_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run([*command, "docs", tmp_path], cwd=HERE, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
