"""Check the built site: `python tools/site_check.py build/docs`.

No page loads anything from another site, links inside the site and to files of the project lead somewhere, and every
picture has a description. Links to other sites are tried by `make docs-linkcheck`.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

# The standard library's parser of HTML takes eight seconds for the site; these take half of one.
TAG = re.compile(r'<([a-z]\w*)((?:\s[^>"]*(?:"[^"]*"[^>"]*)*)?)>')
ATTRIBUTE = re.compile(r'\s(id|name|href|src|alt|aria-hidden)="([^"]*)"')
SCRIPT = re.compile(r"(<script\b[^>]*>).*?</script>", re.DOTALL)
LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href"}


class Page:
    """What a page loads, what it links to, and the anchors it has."""

    def __init__(self, text: str) -> None:
        self.loaded, self.links, self.anchors, self.bare = list[str](), list[str](), set[str](), list[str]()
        for tag, attributes in TAG.findall(SCRIPT.sub(r"\1", text)):
            self._tag(tag, {name: html.unescape(value) for name, value in ATTRIBUTE.findall(attributes)})

    def _tag(self, tag: str, found: dict[str, str]) -> None:
        self.anchors.update(filter(None, (found.get("id"), found.get("name") if tag == "a" else None)))
        if tag == "a" and found.get("href", "#") != "#":
            self.links.append(found["href"])
        if tag in LOADED and found.get(LOADED[tag]):
            self.loaded.append(found[LOADED[tag]])
        if tag == "img" and not found.get("alt", "").strip() and found.get("aria-hidden") != "true":
            self.bare.append(found.get("src", ""))


def problems(folder: Path) -> list[str]:
    """Return what is wrong in a built site, a line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    wrong: list[str] = []
    for path, page in pages.items():
        name = path.relative_to(folder)
        if "_static" in name.parts:
            continue
        wrong += [f"{name}: loads {each} from another site" for each in page.loaded if urlsplit(each).netloc]
        wrong += [f"{name}: the picture {each} has no description" for each in page.bare]
        for link in {*page.links, *page.loaded}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                wrong.append(f"{name}: a dead link, {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                wrong.append(f"{name}: no such place, {link}")
    return wrong


def main() -> int:
    wrong = problems(Path(sys.argv[1]).resolve())
    print(*wrong, sep="\n", file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
