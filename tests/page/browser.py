"""A headless Chromium driven through its protocol over two pipes: no driver, no port, no package."""

import json
import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    """Return the browser's path, None if it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser."""

    def __init__(self, profile):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The protocol's pipes are the descriptors 3 and 4 of the browser.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        flags += ["--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run"]
        self._process = subprocess.Popen(
            ["bash", "-c", command, find(), *flags, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._left, self.events = 0, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = None
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        while b"\0" not in self._left:
            part = os.read(self._read, 1 << 16)
            assert part, "the browser ended"
            self._left += part
        whole, _, self._left = self._left.partition(b"\0")
        return json.loads(whole)

    def evaluate(self, expression):
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, path, *, width=1280, height=900, dark=False):
        """Open a file and wait until its script has finished."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.events = [event for event in self.events if event.get("method") != "Page.loadEventFired"]
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        self.evaluate(
            "new Promise(done => { const ask = () => document.documentElement.dataset.ready"
            " ? requestAnimationFrame(() => requestAnimationFrame(done)) : setTimeout(ask, 5); ask(); })"
        )

    def screenshot(self, path, *, whole=False):
        """Save the visible part, or the whole page, as PNG."""
        import base64

        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def problems(self):
        """Return errors of the console, exceptions, and requests for anything but the file itself."""
        found = []
        for event in self.events:
            method, about = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(about["exceptionDetails"].get("exception", {}).get("description")))
            if method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
                found.append(str(about["args"]))
            if method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(about["entry"]["text"])
            if method == "Network.requestWillBeSent" and not about["request"]["url"].startswith(
                ("file:", "data:")
            ):
                found.append(about["request"]["url"])
        return found

    def close(self):
        """Stop the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
