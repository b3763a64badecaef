"""A real Chromium, without a window and with a profile of its own that is empty at the beginning.

Where it or its driver is missing, that is a reason to skip on a developer's machine, and a failure in CI.
"""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_core_python.selenium import Axe
from django.conf import settings
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from .waiting import eventually

# The second half keeps a browser that is to look at one page from telephoning.
_ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-default-browser-check", "--disable-default-apps", "--disable-extensions",
)  # fmt: skip


class Browser:
    """One window, on one server."""

    def __init__(self, driver: Chrome, server: str) -> None:
        self.driver = driver
        self.server = server
        self.resize(1280, 900)

    def resize(self, width: int, height: int) -> None:
        """Of the page, not of the window, which has a smallest size."""
        self._tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """:param scheme: ``light`` or ``dark``."""
        self._tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def speak(self, language: str) -> None:
        self._tell("Network.enable")
        self._tell("Network.setExtraHTTPHeaders", headers={"Accept-Language": language})

    def log_in(self, session: str) -> None:
        self.open("/favicon.ico")
        self._tell("Network.setCookie", url=self.server, name=settings.SESSION_COOKIE_NAME, value=session)

    def open(self, path: str) -> None:
        self.driver.get(f"{self.server}{path}")

    @property
    def path(self) -> str:
        return self.driver.current_url.removeprefix(self.server)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def link(self, text: str) -> WebElement:
        return self.driver.find_element(By.PARTIAL_LINK_TEXT, text)

    def ask(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def press(self, *keys: str) -> None:
        """On whatever has the focus."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def follow(self, link: WebElement | None = None) -> None:
        """Click on a link, or press Enter where the focus is, and return when another page has come."""
        self.ask("window.isLeft = true")
        if link is None:
            self.press(Keys.ENTER)
        else:
            link.click()
        eventually(self._is_at_another, "another page")

    def _is_at_another(self) -> bool:
        try:
            return bool(self.ask("return !window.isLeft && document.readyState === 'complete'"))
        except WebDriverException:
            # Between two pages there is nothing to ask, and the driver has many names for that.
            return False

    def tab(self) -> WebElement:
        """Go on to the next element that takes the focus."""
        self.press(Keys.TAB)
        return self.driver.switch_to.active_element

    def complaints(self) -> list[str]:
        """What the console has said since the last time, warnings apart."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def hosts(self) -> set[str]:
        """Whom it has asked for anything since the last time."""
        entries = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        urls = (each["params"]["request"]["url"] for each in entries if each["method"] == "Network.requestWillBeSent")
        return {urlsplit(url).netloc for url in urls if not url.startswith(("data:", "chrome:"))}

    def barriers(self, selector: str) -> list[str]:
        """What the rules of axe find wrong within a part of the page, for whoever cannot see or point."""
        self.ask(Axe().axe_script)
        found = self.driver.execute_async_script("axe.run(arguments[0]).then(arguments[1])", selector)
        return [f"{each['id']}: {node['html']}" for each in found["violations"] for node in each["nodes"]]

    def picture(self, path: Path, *, height: int) -> None:
        """The page from its top, so many pixels high, whatever of it can be seen."""
        clip = {"x": 0, "y": 0, "width": self.ask("return window.innerWidth"), "height": height, "scale": 1}
        shot = self._tell("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(b64decode(shot["data"]))

    def _tell(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)


@contextmanager
def browsing(server: str, profile: Path) -> Iterator[Browser]:
    """:param profile: an empty folder."""
    options = ChromeOptions()
    options.binary_location = _program("chromium", "chromium-browser", "google-chrome")
    for argument in (*_ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Named, because selenium would look for one on the network otherwise.
    driver = Chrome(options=options, service=Service(executable_path=_program("chromedriver")))
    try:
        yield Browser(driver, server)
    finally:
        driver.quit()


def _program(*names: str) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    reason = f"there is no {names[0]} on the PATH"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
