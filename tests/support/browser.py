"""A real browser without a window: Chromium, driven through the pipe that it has for this, with no port and no driver.

The protocol is the one of its developer tools: https://chromedevtools.github.io/devtools-protocol/.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAMS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
OPTIONS = (
    *("--headless", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-sync"),
    *("--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"),
    *("--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb", "--lang=en-GB"),
)
ANSWER_SECONDS = 60.0
PHONE = 600


def found() -> str:
    """The browser of this machine.

    Raises:
        AssertionError: there is none.
    """
    for name in PROGRAMS:
        if path := shutil.which(name):
            return path
    raise AssertionError(f"no browser: run scripts/setup-viewers.sh, or install one of {', '.join(PROGRAMS)}")


class Browser:
    """One page of a browser; `asked` has the URL of every request of the page, `lines` what its console has."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.lines: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        (from_us, self._to), (self._from, to_us) = os.pipe(), os.pipe()
        # Chromium reads from 3 and writes to 4. As root it runs only without its own sandbox.
        argv = [
            found(),
            *OPTIONS,
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            f"--user-data-dir={self._folder.name}",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{from_us} 4>&{to_us}', *argv, "about:blank"],
            pass_fds=(from_us, to_us),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TZ": "UTC"},
        )
        os.close(from_us)
        os.close(to_us)
        self._number, self._session = 0, ""
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="browser", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        pages = self.call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Runtime", "Page", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(ANSWER_SECONDS)
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result.

        Raises:
            AssertionError: the browser refuses it, or has ended.
        """
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        os.write(
            self._to, json.dumps({"id": self._number, "method": method, "params": values, **session}).encode() + b"\0"
        )
        try:
            answer = self._answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise AssertionError(f"the browser does not answer {method}") from None
        assert answer.get("id") == self._number, f"{method}: {answer}"
        assert "result" in answer, f"{method}: {answer}"
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str) -> None:
        """Go to a page."""
        failed = self.call("Page.navigate", url=url).get("errorText")
        assert not failed, f"{url}: {failed}"

    def width(self, columns: int, height: int = 900) -> None:
        """Let the window be so many pixels wide; a narrow one is a phone's."""
        values = {"width": columns, "height": height, "deviceScaleFactor": 1, "mobile": columns < PHONE}
        self.call("Emulation.setDeviceMetricsOverride", **values)

    def run(self, script: str) -> Any:
        """What an expression is in the page; a promise is waited for."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """What a reader sees of an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def until(self, condition: Callable[[str], object], selector: str = "body", seconds: float = 120) -> str:
        """Wait until the text of an element is as it should be; that text."""
        deadline = time.monotonic() + seconds
        while not condition(text := self.text(selector)):
            assert time.monotonic() < deadline, f"{selector} did not become so within {seconds:.0f} s:\n{text}"
            time.sleep(0.2)
        return text

    def picture(self, path: Path) -> None:
        """Save the whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {**{key: size[key] for key in ("x", "y", "width", "height")}, "scale": 1}
        made = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def _read(self) -> None:
        rest = b""
        while data := os.read(self._from, 1 << 16):
            *whole, rest = (rest + data).split(b"\0")
            for message in whole:
                self._take(json.loads(message))
        self._answers.put({"error": "the browser has ended"})

    def _take(self, message: dict[str, Any]) -> None:
        values = message.get("params", {})
        match message.get("method"):
            case None:
                self._answers.put(message)
            case "Network.requestWillBeSent":
                self.asked.append(values["request"]["url"])
            case "Runtime.exceptionThrown":
                self.lines.append(str(values["exceptionDetails"]))
            case "Log.entryAdded":
                self.lines.append(values["entry"]["text"])
