"""Pages in a browser without a window: what they look like to a program once their scripts have run."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--window-size=1600,1000", "--virtual-time-budget=3000",
)  # fmt: skip


def dom_of(page: str | Path, fragment: str = "", script: str = "") -> str:
    """The document of a page as HTML, after its own scripts and another one have run.

    The script is the body of an asynchronous function; what it returns is in an element `result` as JSON.
    """
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="kiln-browser-") as folder:
        file = Path(folder) / "page.html"
        text = Path(page).read_text(encoding="utf-8")
        if script:
            wrapped = f"""<script>addEventListener("load", async () => {{
              let result;
              try {{ result = await (async () => {{ {script} }})(); }} catch (error) {{ result = String(error.stack); }}
              document.body.append(Object.assign(document.createElement("pre"), {{ id: "result", textContent: JSON.stringify(result) }}));
            }});</script></body>"""
            text = text.replace("</body>", wrapped)
        file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}/profile", "--dump-dom", f"file://{file}{fragment}"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def result_of(dom: str) -> str:
    """What a script of `dom_of` returned, as JSON."""
    import html

    found = re.search(r'<pre id="result">(.*?)</pre>', dom, re.DOTALL)
    assert found is not None, "the script did not end"
    return html.unescape(found[1])
