"""How soon learners with real browsers have a verdict: ``python benchmarks/class_browsers.py ADDRESS PASSWORD NAME …``.

The class runs already (``workbench class up``). Each learner is a Chromium without a window, of its own profile. All
sign in within ten seconds, open the exercises of lesson 02 in JupyterLab, write the first answer into its cell, and run
the cells to its check. Printed are the seconds from signing in to the verdict on the screen.

``workbench class rehearse`` needs no browser, and does more.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import time
from statistics import median
from typing import Any

from workbench.course.tasks import task

NOTEBOOK, NAME, CELL = "exercises/02_collectives_by_hand.ipynb", "02.tree_broadcast", 1
ALL_BEGIN_S, LONGEST_S = 10.0, 180.0


async def first_verdict(browser: Any, address: str, password: str, name: str) -> float:
    """Seconds from signing in to the verdict on the screen."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = await context.new_page()
        page.set_default_timeout(1000 * LONGEST_S)
        begun = time.monotonic()
        await page.goto(f"{address}hub/login?next=/hub/user/{name}/lab/tree/{NOTEBOOK}%3Freset")
        await page.fill("#username_input", name)
        await page.fill("#password_input", password)
        await page.click("#login_submit")
        editor = page.locator(".jp-Notebook .jp-CodeCell").nth(CELL).locator(".cm-content")
        await editor.click()
        await page.keyboard.press("Control+a")
        await page.keyboard.insert_text(task(NAME).cell(True).rstrip("\n"))
        await page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()
        await page.locator(".jp-Notebook .jp-CodeCell").first.locator(".cm-content").click()
        for _ in range(4):  # imports, a text, the answer, its check
            await page.keyboard.press("Shift+Enter")
        await page.locator(".jp-OutputArea-output", has_text="✓ right").first.wait_for()
        return time.monotonic() - begun
    finally:
        await context.close()


async def learners(address: str, password: str, names: list[str]) -> dict[str, float | str]:
    """By name the seconds, or what went wrong."""
    from playwright.async_api import async_playwright

    found: dict[str, float | str] = {}

    async def one(number: int, name: str, driver: Any) -> None:
        await asyncio.sleep(number * ALL_BEGIN_S / len(names))
        browser = await driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            found[name] = await first_verdict(browser, address, password, name)
        except Exception as error:  # noqa: BLE001 - it is that learner's story
            found[name] = f"{type(error).__name__}: {error}"[:300]
        finally:
            await browser.close()

    async with async_playwright() as driver:
        await asyncio.gather(*(one(number, name, driver) for number, name in enumerate(names)))
    return found


def main() -> None:
    """Print seconds, in order, and what went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("address")
    parser.add_argument("password")
    parser.add_argument("names", nargs="+")
    words = parser.parse_args()
    found = asyncio.run(learners(words.address, words.password, words.names))
    took = sorted(each for each in found.values() if isinstance(each, float))
    print(f"{len(took)} of {len(found)} have a verdict: {', '.join(f'{each:.0f}' for each in took)} s")
    if took:
        print(f"median {median(took):.0f} s, the last {took[-1]:.0f} s")
    for name, each in sorted(found.items()):
        if isinstance(each, str):
            print(f"{name}: {each}")


if __name__ == "__main__":
    main()
