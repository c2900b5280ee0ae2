"""What the demo says, kept as an SVG for the README: `python -m examples.demo --picture FILE`."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Columns: wide enough for the dead set's table, narrow enough to be read in a README.
WIDTH = 96
#: Columns of the seconds before each line.
STAMP = 9


class Picture:
    """Line by line what was said, wrapped behind the seconds instead of cut off."""

    def __init__(self) -> None:
        self.console = Console(
            record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False
        )

    def add(self, stamp: str, text: str, style: str) -> None:
        if not stamp:
            self.console.print(Text(text, style=style))
            return
        row = Table.grid(padding=0)
        row.add_column(width=STAMP)
        row.add_column(width=WIDTH - STAMP)
        row.add_row(Text(stamp, style="dim"), Text(text, style=style))
        self.console.print(row)

    def call(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> int:
        """Run a command that draws for a terminal, show what it says, and return its exit code."""
        terminal = {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
        done = subprocess.run(
            command, cwd=cwd, env={**env, **terminal}, stdout=subprocess.PIPE, text=True
        )
        print(done.stdout, end="", flush=True)
        self.console.print(Text.from_ansi(done.stdout))
        return done.returncode

    def save(self, path: Path) -> None:
        svg = self.console.export_svg(title="python -m examples.demo", unique_id="demo")
        # A picture in a page loads nothing from elsewhere: the reader's own monospace is used.
        svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
        svg = "\n".join(line.rstrip() for line in svg.splitlines())
        path.write_text(f"{svg}\n")
