"""Chromium, driven by selenium; tests that ask for it are skipped where either is absent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser_program() -> str | None:
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """One headless browser, and what these tests want of it."""

    def __init__(self, driver: Any):
        self.driver = driver

    def show(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open `address` anew, in a window of that size (CSS pixels)."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": theme})
        self.driver.get("about:blank")
        self.driver.get(address)
        self.wait("document.documentElement.dataset.ready === 'true'")

    def run(self, script: str, *args: Any) -> Any:
        """What `script` (the body of a function) returns."""
        return self.driver.execute_script(script, *args)

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 60, poll_frequency=0.05).until(lambda d: d.execute_script(f"return {condition}"))

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def button(self, text: str) -> Any:
        """The visible button or link with that text."""
        found = [e for e in self.all("button, a.button") if e.is_displayed() and e.text == text]
        assert len(found) == 1, (text, len(found))
        return found[0]

    def press(self, *keys: str) -> None:
        """Keys, one after the other, to whatever has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def hover(self, element: Any) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).move_to_element(element).perform()

    def console(self) -> list[str]:
        """What was written to the console since this was asked last, errors of the page among it."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install '.[browser]'")
    program, driver = browser_program(), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--force-prefers-reduced-motion"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # there is none for root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    made.set_script_timeout(300)
    try:
        yield Browser(made)
    finally:
        made.quit()
