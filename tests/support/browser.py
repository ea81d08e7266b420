"""A real Chromium, from Debian's packages: pages light and dark, wide and narrow, and what axe finds wrong in them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright

from tests.support.debian import program

AXE = Path(__file__).parent / "axe" / "axe.min.js"
"""axe-core 4.14.1, as its package on npm carries it; MPL-2.0, see LICENSE beside it."""
WIDE, NARROW = (1280, 900), (390, 844)
SERIOUS = ("serious", "critical")
PATIENCE_MS, EXPECT_MS = 30_000, 60_000
"""For what is asked of a page, and for what a page is expected to show: the machine may be busy with other tests."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window. Without it the test is skipped at home, and fails in CI."""
    path = program("chromium-headless-shell", package="chromium-headless-shell")
    expect.set_options(timeout=EXPECT_MS)
    # Chromium's sandbox needs user namespaces, and refuses root; the pages are ours.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], env={**os.environ})
        yield browser
        browser.close()


@dataclass
class Visitor:
    """A person with a browser at one address, and what the browser had to complain about."""

    browser: Browser
    address: str
    complaints: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    """Of each request, as a proxy adds them."""

    @contextmanager
    def page(self, path: str = "/", *, has_scripts: bool = True) -> Iterator[Page]:
        """A page of this address in a browser of its own: no cookie and no choice is left from another one."""
        context = self.browser.new_context(
            base_url=self.address,
            viewport={"width": WIDE[0], "height": WIDE[1]},
            color_scheme="light",
            java_script_enabled=has_scripts,
            reduced_motion="reduce",
            timezone_id="Europe/Berlin",
            locale="en-GB",
            extra_http_headers=self.headers,
        )
        context.set_default_timeout(PATIENCE_MS)
        try:
            page = context.new_page()
            page.on("console", self._note)
            page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
            page.goto(path)
            yield page
        finally:
            context.close()

    def _note(self, message: ConsoleMessage) -> None:
        # A status of 404 or 503 is an error line, too; tests look at the page that came with it.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.complaints.append(f"{message.location.get('url', '')}: {message.text}")


def table(page: Page, selector: str) -> list[list[str]]:
    """The cells of a table's body, as a person reads them."""
    rows: list[list[str]] = page.eval_on_selector_all(
        f"{selector} tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    )
    return rows


def picture(page: Page, file: Path) -> None:
    """Keep the whole page as a small picture: a page has few colours."""
    page.screenshot(path=file, full_page=True)
    with Image.open(file) as drawn:
        drawn.convert("RGB").quantize(160, dither=Image.Dither.NONE).save(file, optimize=True)


def serious(page: Page) -> list[str]:
    """What axe finds on the page that keeps people from using it: rule, and where."""
    page.evaluate(_axe())
    found: dict[str, Any] = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{page.url} {rule['id']} ({rule['impact']}): {rule['help']}: {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        if rule["impact"] in SERIOUS
        for node in rule["nodes"]
    ]


@cache
def _axe() -> str:
    return AXE.read_text("utf-8")


def is_wider_than_its_window(page: Page) -> bool:
    """True if one must scroll sideways to read the page."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


__all__ = ["NARROW", "WIDE", "Error", "Visitor", "chromium", "is_wider_than_its_window", "picture", "serious", "table"]
