"""Makes demo.svg: the demo on stock Celery and on this package, side by side.

    python docs/pictures/beside.py

Both demos run on this machine, one after the other, and the picture shows what happened. It plays
in real time, from shortly before the kill. A viewer without animation shows its end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
#: Seconds before the kill and after the last event.
BEFORE, AFTER = 3.0, 4.0
WAITS, RUNS, DONE, HELD, PILL = "#d0d7de", "#3b82f6", "#22a06b", "#e5484d", "#8b1a1a"
LEGEND = {
    "waiting": WAITS,
    "running": RUNS,
    "finished": DONE,
    "in flight on the killed worker": HELD,
}
#: Pixels of a side, of a job's square and of its distance to the next; squares in a row.
WIDTH, SQUARE, STEP, COLUMNS = 470, 20, 26, 16
TITLES = {"--stock": "Stock Celery, acks_late on", "": "The same with celery_superfetch"}


def recorded(option: str) -> dict[str, Any]:
    """Run the demo, and return its recording."""
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "recording.json"
        command = [sys.executable, "-m", "examples.demo", "--record", str(to)]
        subprocess.run([*command, *filter(None, [option])], cwd=HERE.parents[1], check=False)
        found: dict[str, Any] = json.loads(to.read_text())
        return found


class Film:
    """SVG elements that change at given seconds after the kill, in a loop."""

    def __init__(self, length: float) -> None:
        self.length = length

    def changing(self, element: str, attribute: str, states: Sequence[tuple[float, str]]) -> str:
        """Return an element whose attribute takes these values, each from its second on."""
        name = element.split()[0]
        whole = BEFORE + self.length
        times = [min(max(at + BEFORE, 0.0) / whole, 0.9999) for at, _ in states]
        shown = [
            (at, value)
            for (at, value), later in zip(
                zip(times, (value for _, value in states), strict=True),
                [*times[1:], 1.0],
                strict=True,
            )
            if later > at
        ]
        keys = ";".join(f"{at:.4f}".rstrip("0").rstrip(".") for at, _ in shown)
        values = ";".join(value for _, value in shown)
        opening, _, text = element.partition(">")
        return (
            f'<{opening} {attribute}="{states[-1][1]}">{text}<animate attributeName="{attribute}" '
            f'dur="{whole:.1f}s" repeatCount="indefinite" calcMode="discrete" keyTimes="{keys}" '
            f'values="{values}"/></{name}>'
        )

    def text(self, at: float, x: int, y: int, said: str, *, until: float | None = None) -> str:
        """Return a line of text that appears at its second."""
        states = [(-BEFORE, "0"), (at, "1")] + ([(until, "0")] if until is not None else [])
        return self.changing(f'text x="{x}" y="{y}">{escape(said)}', "opacity", states)

    def side(self, title: str, found: dict[str, Any]) -> Iterator[str]:
        """Yield the title of a side, its jobs, its events, and each run of the killer job."""
        yield f'<text x="0" y="0" class="title">{escape(title)}</text>'
        for number, job in enumerate(found["jobs"]):
            y, x = divmod(number, COLUMNS)
            rect = f'rect x="{x * STEP}" y="{20 + y * STEP}" width="{SQUARE}" height="{SQUARE}">'
            yield self.changing(rect, "fill", self.states(job, found))
        for row, (at, said) in enumerate(found["noted"]):
            yield self.text(at, 0, 158 + row * 22, f"{max(at, 0):4.1f} s  {said}")
        pills = [at for job, at, _ in found["runs"] if job == "poison"]
        for number, at in enumerate(pills):
            y, x = divmod(number, 2 * COLUMNS)
            circle = f'circle cx="{5 + x * 13}" cy="{306 + y * 13}" r="5" fill="{PILL}">'
            yield self.changing(circle, "opacity", [(-BEFORE, "0"), (at, "1")])

    def states(self, job: str, found: dict[str, Any]) -> list[tuple[float, str]]:
        states = [(-1e9, WAITS)]
        for name, started, finished in found["runs"]:
            if name == job:
                states += [(started, RUNS)] + ([(finished, DONE)] if finished else [])
        if job in found["had"]:
            states.append((0.0, HELD))
            back = [at for at, said in found["noted"] if "are back" in said]
            states += [(at, WAITS) for at in back]
        states.sort()
        # The state before the picture begins is the first one shown.
        early = [state for state in states if state[0] <= -BEFORE]
        return [(-BEFORE, early[-1][1]), *states[len(early) :]]


def draw(sides: dict[str, dict[str, Any]]) -> str:
    last = max(at for found in sides.values() for at, _ in found["noted"])
    film = Film(last + AFTER)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH + 40} 410">',
        "<style>text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328;white-space:pre}"
        ".title{font:bold 17px system-ui,sans-serif}.clock{font:bold 15px system-ui,sans-serif}"
        "</style>",
        '<rect width="100%" height="100%" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
    ]
    parts.append('<g class="clock" transform="translate(20,388)">')
    for second in range(-int(BEFORE), int(film.length) + 1):
        said = f"{second} s after the kill" if second >= 0 else f"{-second} s before the kill"
        until = second + 1.0 if second < int(film.length) else None
        parts.append(film.text(second, 0, 0, said, until=until))
    parts.append("</g>")
    x = 210
    for said, colour in LEGEND.items():
        parts.append(f'<rect x="{x}" y="376" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="388">{said}</text>')
        x += 44 + 8 * len(said)
    parts.append(f'<circle cx="{x + 6}" cy="383" r="5" fill="{PILL}"/>')
    parts.append(f'<text x="{x + 20}" y="388">the killer runs</text>')
    for number, (option, found) in enumerate(sides.items()):
        parts.append(f'<g transform="translate({20 + number * (WIDTH + 20)},34)">')
        parts += [*film.side(TITLES[option], found), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    (HERE / "demo.svg").write_text(draw({option: recorded(option) for option in TITLES}))
