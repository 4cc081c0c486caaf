"""A real browser without a screen: Debian's Chromium."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

SIZE = (1280, 860)
_SWITCHES = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")


def needs_chromium() -> pytest.MarkDecorator:
    """Skips where there is no browser; MASKWRIGHT_REQUIRE_CHROMIUM=1 makes that a failure instead."""
    there = bool(shutil.which("chromium") and shutil.which("chromedriver"))
    wanted = os.environ.get("MASKWRIGHT_REQUIRE_CHROMIUM") == "1"
    return pytest.mark.skipif(not there and not wanted, reason="apt-get install chromium chromium-driver")


class Browser:
    """One window; `said` has what the pages have written to the console as errors."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.said: list[str] = []

    def open(self, address: str, *texts: str) -> None:
        """Open a page and wait until it shows all the texts."""
        self.driver.get("about:blank")  # or a change behind the # alone would not load anything
        self.driver.get(address)
        self.wait_for(*texts)

    def wait_for(self, *texts: str, seconds: float = 60) -> None:
        """Wait until the page shows all the texts, and half a second more for what is being drawn."""
        try:
            WebDriverWait(self.driver, seconds).until(lambda _: all(text in self.text for text in texts))
        except TimeoutException:
            missing = [text for text in texts if text not in self.text]
            pytest.fail(f"{self.driver.current_url} does not show {missing}, but:\n{self.text[:3000]}")
        time.sleep(0.5)
        self.said += [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    @property
    def text(self) -> str:
        return str(self.driver.execute_script("return document.body ? document.body.innerText : ''"))

    def picture(self, path: Path) -> None:
        self.driver.save_screenshot(str(path))


@contextlib.contextmanager
def chromium(*switches: str) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for switch in (*_SWITCHES, f"--window-size={SIZE[0]},{SIZE[1]}", *switches):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def opened(page: Path, *switches: str) -> tuple[str, list[str]]:
    """The DOM of a local page as HTML, and all that it has written to the console."""
    with chromium(*switches) as browser:
        browser.driver.get(page.as_uri())
        time.sleep(0.5)
        dom = browser.driver.execute_script("return document.documentElement.outerHTML")
        return str(dom), [entry["message"] for entry in browser.driver.get_log("browser")]
