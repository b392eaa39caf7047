"""Drive a headless Chromium through a pipe: open pages at a width and in a theme, run scripts, take screenshots."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """A page of a headless Chromium, driven by the DevTools protocol."""

    def __init__(self, commands: int, replies: int) -> None:
        self._commands, self._replies = commands, replies
        self._rest, self._next, self._session = b"", 0, None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")

    def open(self, url: str, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        """Load a page in a window of a size, for a reader who prefers a dark or a light theme."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url="about:blank")  # a page is loaded again where only the fragment differs
        self._wait("Page.loadEventFired")
        self._call("Page.navigate", url=url)
        self._wait("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Return what a script returns: the body of an asynchronous function, its value as JSON."""
        expression = f"(async () => {{ {script} }})()"
        found = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description") or str(found))
        return found["result"].get("value")

    def screenshot(self, path: Path, *, most: int = 4000) -> None:
        """Write the page as a PNG file, at most `most` pixels of its height."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], most), "scale": 1}
        found = self._call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, **params: Any) -> Any:
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (reply := self._read()).get("id") != self._next:
            pass
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def _wait(self, event: str) -> None:
        while self._read().get("method") != event:
            pass

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not (more := os.read(self._replies, 1 << 16)):
                raise RuntimeError("the browser has ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium, which reads commands from descriptor 3 and writes to 4, and end it afterwards."""
    if CHROMIUM is None:
        raise RuntimeError("there is no chromium")
    read_commands, commands = os.pipe()
    replies, write_replies = os.pipe()
    with tempfile.TemporaryDirectory(prefix="kiln-browser-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{read_commands} 4>&{write_replies}', "bash"]
            + [CHROMIUM, *FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(read_commands, write_replies),
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_replies)
        try:
            yield Browser(commands, replies)
        finally:
            os.close(commands)
            os.close(replies)
            process.terminate()
            process.wait()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine while the block runs, and return its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
