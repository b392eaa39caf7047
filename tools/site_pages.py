"""Look at the built site in a headless Chromium: `python tools/site_pages.py build/docs build/docs-check [PAGE...]`.

Opens pages in two themes at 1400 and 400 pixels: nothing reaches out of the window, and text has the contrast that
WCAG asks for (AA), code, pseudo-elements and pictures too. Searches the site for words of the field, and draws with the
playground. The second folder gets a screenshot of every page.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import chromium
import playground

PAGES = (
    "index",
    "learn/index",
    "learn/04-layouts",
    "learn/05-speed-of-a-copy",
    "learn/11-gemm-staircase",
    "gallery",
    "howto/fused-epilogue",
    "come-from/triton",
    "reference/api/math",
    "reference/commands",
    "kernels",
    "playground",
)
SEARCHES = {
    "vectorized loads": "knowledge/optimizations/sixteen-byte-accesses.html",
    "coalescing": "learn/05-speed-of-a-copy.html",
    "race": "learn/03-a-race.html",
    "tcgen05": "learn/13-blackwell.html",
    "sigmoid": "reference/api/math.html#kiln.cute.math.sigmoid",
    "install": "index.html",
    "numpy": "learn/01-first-kernel.html",
    "debug print": "learn/02-what-runs-when.html",
    "softmax": "learn/06-reductions.html",
    "shared memory": "learn/07-shared-memory.html",
    "bank conflict": "learn/07-shared-memory.html",
    "swizzle": "learn/07-shared-memory.html",
    "matmul": "learn/11-gemm-staircase.html",
    "cluster": "learn/11-gemm-staircase.html",
    "flash attention": "learn/12-attention.html",
    "B200": "learn/13-blackwell.html",
    "pytorch": "learn/14-tune-and-ship.html",
    "jax": "learn/14-tune-and-ship.html",
    "autotune": "learn/14-tune-and-ship.html",
    "warp": "learn/00-a-gpu-in-ten-minutes.html",
    "mask": "howto/odd-sizes.html",
    "deadlock": "howto/debug-a-hang.html",
    "cuda graph": "howto/cuda-graphs.html",
    "quantization": "howto/fp8-with-scales.html",
    "export": "howto/aot-for-cpp.html",
    "profile": "workbench.html",
    "int4": "kernels.html",
    "error": "reference/errors.html",
}
"""What one searches for, and the page that must come first."""

STILL = 'document.head.append(Object.assign(document.createElement("style"), { textContent: "* { transition: none !important; }" }));'
"""A colour that is still changing is no colour to judge."""
FIRST_FOUND = """
for (let i = 0; i < 600 && !document.querySelector("#search-results .search-summary"); i++)
  await new Promise((done) => setTimeout(done, 50));
await new Promise((done) => setTimeout(done, 500));
return document.querySelector("#search-results ul.search > li a")?.getAttribute("href");
"""
OVERFLOW = """
const wide = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth <= wide) return [];
const inside = (e) => { for (let p = e.parentElement; p; p = p.parentElement)
  if (getComputedStyle(p).overflowX !== "visible" && p !== document.body && p !== document.documentElement) return true; };
return [...document.body.querySelectorAll("*")].filter((e) => e.getBoundingClientRect().right > wide + 1 && !inside(e))
  .slice(0, 3).map((e) => `${e.tagName.toLowerCase()}.${e.className?.baseVal ?? e.className} is cut: ${e.textContent.trim().slice(0, 40)}`);
"""
CONTRAST = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const known = new Map();
const rgba = (text) => {
  if (!known.has(text)) {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; known.set(text, [r, g, b, a / 255]);
  }
  return known.get(text);
};
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
  const v = c[i] / 255; return sum + weight * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
const backgrounds = new Map([[null, [255, 255, 255, 1]]]);
const behind = (element) => {
  if (!backgrounds.has(element))
    backgrounds.set(element, over(rgba(getComputedStyle(element).backgroundColor), behind(element.parentElement)));
  return backgrounds.get(element);
};
const shapes = new Map();
const behindInPicture = (text) => {
  const svg = text.ownerSVGElement; const box = text.getBoundingClientRect();
  if (!shapes.has(svg)) shapes.set(svg, [...svg.querySelectorAll("rect, polygon, circle, path")].map((e) => [e, e.getBoundingClientRect()]));
  const x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
  let below = svg.parentElement ? behind(svg) : [255, 255, 255, 1];
  for (const [e, r] of shapes.get(svg)) {
    if (text.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING) break;
    const style = getComputedStyle(e);
    if (style.fill !== "none" && r.left <= x && x <= r.right && r.top <= y && y <= r.bottom)
      below = over([...rgba(style.fill).slice(0, 3), rgba(style.fill)[3] * style.fillOpacity * style.opacity], below);
  }
  return below;
};
const found = new Map();
const judge = (element, style, text, below) => {
  const size = parseFloat(style.fontSize), need = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
  const paint = element instanceof SVGElement ? style.fill : style.color;
  let color = [...rgba(paint)];
  for (let e = element; e; e = e.parentElement) color[3] *= getComputedStyle(e).opacity;
  const got = ratio(over(color, below), below);
  if (got < need) {
    const key = `${element.tagName.toLowerCase()}.${element.className?.baseVal ?? element.className} ${paint} on rgb(${below.slice(0, 3).map(Math.round)}), ${got.toFixed(2)}`;
    if (!found.has(key)) found.set(key, text.trim().slice(0, 30));
  }
};
const root = document.body ?? document.documentElement;
const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
const tokens = new Set();
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement, code = element.closest(".highlight pre");
  if (code) {  // tokens of a kind look the same in all blocks of a kind
    const kind = `${element.className} in ${element.parentElement.className} in ${code.parentElement.parentElement.className}`;
    if (tokens.has(kind)) continue;
    if (element.checkVisibility()) tokens.add(kind);
  }
  if (!node.data.trim() || element.closest("script, style, noscript, title, desc, :disabled, [hidden]")) continue;
  const style = getComputedStyle(element);
  if (style.visibility !== "visible" || !element.checkVisibility?.()) continue;
  const box = element.getBoundingClientRect();
  if (box.width <= 1 || box.height <= 1) continue;
  judge(element, style, node.data, element instanceof SVGElement ? behindInPicture(element) : behind(element));
}
for (const element of root.querySelectorAll("*:not(.highlight pre *)")) for (const part of ["::before", "::after"]) {
  const style = getComputedStyle(element, part);
  if (/^"[^"]*\\w/.test(style.content) && style.visibility === "visible" && style.opacity > 0 && element.checkVisibility?.())
    judge(element, style, `${part} ${style.content}`, over(rgba(style.backgroundColor), behind(element)));
}
return [...found].map(([key, text]) => `low contrast: ${key}: ${text}`);
"""
PICTURES = (
    'return [...document.querySelectorAll(".bd-article img")].map((e) => e.src).filter((src) => src.endsWith(".svg"));'
)
DRAWN = """
const form = document.getElementById("playground-form"), said = (id) => document.getElementById(`playground-${id}`);
Object.assign(form.layout, { value: TYPED[1] }), Object.assign(form.operation, { value: TYPED[0] });
form.dispatchEvent(new Event("input", { bubbles: true }));
Object.assign(form.operand, { value: TYPED[2] });
said("result").hidden = said("error").hidden = true;
form.requestSubmit();
for (let i = 0; i < 3000 && said("result").hidden && said("error").hidden; i++) await new Promise((done) => setTimeout(done, 50));
return { text: said("text").textContent, error: said("error").textContent, svg: said("picture").innerHTML, link: location.hash };
"""


def page_problems(page: chromium.Browser, url: str, name: str, shots: Path) -> list[str]:
    """Return what is wrong with a page in two themes and widths, a line each."""
    wrong: list[str] = []
    pictures: set[str] = set()
    for dark in (False, True):
        for width in (1400, 400):
            page.open(f"{url}/{name}.html", width=width, dark=dark)
            page.run(STILL)
            where = f"{name}, {width} pixels, {'dark' if dark else 'light'}"
            wrong += [f"{where}: {each}" for each in (*page.run(OVERFLOW), *page.run(CONTRAST))]
            page.screenshot(shots / f"{name.replace('/', '-')}-{width}-{'dark' if dark else 'light'}.png")
            pictures.update(page.run(PICTURES))
    for picture in sorted(pictures):
        page.open(picture)
        wrong += [f"{picture.removeprefix(url)}: {each}" for each in page.run(CONTRAST)]
    return wrong


def search_problems(page: chromium.Browser, url: str) -> list[str]:
    """Return the searches that give another page first."""
    wrong: list[str] = []
    for words, right in SEARCHES.items():
        page.open(f"{url}/search.html?q={quote(words)}")
        if (first := page.run(FIRST_FOUND).split("?")[0]) != right:
            wrong.append(f"the search for {words!r} gives {first} first, not {right}")
    return wrong


def drawn(page: chromium.Browser, typed: tuple[str, str, str]) -> dict[str, Any]:
    """Return what the open playground shows for an operation, a layout and its operand: text, error, picture, link."""
    return page.run(DRAWN.replace("TYPED", json.dumps(typed)))


def playground_problems(page: chromium.Browser, url: str, shots: Path) -> list[str]:
    """Return where the playground shows something else than Python says here."""
    wrong: list[str] = []
    tried = [
        *playground.answer.PRESETS,
        ("an error", "composition", "(4,", "2"),
        ("another", "logical_divide", "(4,8):(8,1)", "3:1"),
    ]
    for dark, width in ((False, 1400), (True, 400)):
        page.open(f"{url}/playground.html", width=width, dark=dark)
        page.run(STILL)
        for title, *typed in tried[: None if dark else 1]:
            operation, layout, operand = typed
            shown, right = drawn(page, (operation, layout, operand)), json.loads(playground.answer.answer(*typed))
            if any(shown[key] != right.get(key, "") for key in ("text", "error")) or ("svg" in right) != bool(
                shown["svg"]
            ):
                wrong.append(f"the playground, {title}: {shown['text']} {shown['error']}, not {right}")
            wrong += [
                f"the playground, {title}, {width} pixels: {each}"
                for each in (*page.run(OVERFLOW), *page.run(CONTRAST))
            ]
            page.screenshot(shots / f"playground-{title.replace(' ', '-').lower()}-{width}.png")
    return wrong


def main() -> int:
    if chromium.CHROMIUM is None:
        print("the pages cannot be looked at: install Chromium or Chrome (apt-get install chromium)", file=sys.stderr)
        return 2
    site, shots = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    shots.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    with chromium.served(site) as url, chromium.browser() as page:
        for name in sys.argv[3:] or PAGES:
            wrong += page_problems(page, url, name, shots)
        if not sys.argv[3:]:
            wrong += search_problems(page, url)
            if (site / "_static" / "playground").exists():
                wrong += playground_problems(page, url, shots)
    print(*wrong, sep="\n", file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
