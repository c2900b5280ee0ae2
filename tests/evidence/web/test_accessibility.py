"""No view of the page has a fault that axe finds (names, roles, contrast), in light and dark, on a
screen and on a phone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from support.troubled import ASKING, make_troubled
from support.visitors import serving
from support.waiting import eventually

WIDTHS = (1400, 390)

#: The faults of a page as texts. A rule that fails itself has examined nothing: axe calls it
#: incomplete, and names no element.
RUN = """
const done = arguments[arguments.length - 1];
const text = (fault) => fault.id + ": " + fault.nodes.slice(0, 3).map(
  (node) => node.target + " " + node.any.map((check) => check.message)).join("; ");
axe.run().then(
  (found) => done([...found.violations, ...found.incomplete.filter((rule) => !rule.nodes.length)]
    .map(text)),
  (error) => done(["axe failed: " + error]));
"""


@pytest.fixture(scope="session")
def axe() -> str:
    """The program axe, of the package `axe-playwright-python`."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        pytest.skip("axe-playwright-python is not installed (pip install -e '.[test,smoke]')")
    return (Path(spec.origin).parent / "axe.min.js").read_text()


def faults(browser: Any, axe: str) -> list[str]:
    """What axe finds in the page that the browser shows."""
    browser.execute_script(axe)
    return list(browser.execute_async_script(RUN))


def show(browser: Any, scheme: str, width: int) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.set_window_size(width, 900)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_fault(browser, axe, make_app, bench, db, scheme):
    views = make_troubled(bench, db)
    app = make_app()
    found: dict[str, list[str]] = {}
    with (
        serving(app, read_only=False) as url,
        serving(app, token="correct-horse-battery") as closed,
    ):
        addresses = {name: f"{url}{path}" for name, path in views.items()}
        for width in WIDTHS:
            show(browser, scheme, width)
            for name, address in {**addresses, "login": closed}.items():
                browser.get(address)
                found[f"{name} at {width}"] = faults(browser, axe)
            for path, asked in ASKING.items():
                for do in asked:
                    browser.get(f"{url}{path}")
                    browser.find_element("css selector", f"button[value='{do}']").click()
                    eventually(lambda: browser.find_elements("css selector", ".ask h1"), message=do)
                    found[f"question of {path} {do} at {width}"] = faults(browser, axe)
            browser.get(f"{url}queues?name=slow")
            browser.find_element("css selector", "button[value=resume]").click()
            found[f"question at {width}"] = faults(browser, axe)
            browser.find_element("css selector", "button[value='resume now']").click()
            found[f"outcome at {width}"] = faults(browser, axe)
            bench.paused.pause("slow", "a test")
            assert browser.execute_script(
                "return matchMedia('(prefers-color-scheme: dark)').matches"
            ) == (scheme == "dark")
    assert {name: some for name, some in found.items() if some} == {}
    of_many = [name for name in found if "all at" in name or "of many" in name]
    assert len(of_many) == len(WIDTHS) * (5 + 3)


def test_the_control_a_fault_is_found(browser, axe, make_app, bench):
    show(browser, "light", WIDTHS[0])  # the browser may be dark from an earlier test
    with serving(make_app()) as url:
        browser.get(url)
        assert faults(browser, axe) == []
        browser.execute_script("document.querySelector('#verdict h1').style.color = '#eee'")
        browser.execute_script("document.documentElement.removeAttribute('lang')")
        broken = " ".join(faults(browser, axe))
        assert "color-contrast" in broken
        assert "html-has-lang" in broken
