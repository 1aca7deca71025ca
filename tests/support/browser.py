"""Looks at a site in a browser without a window, and prints as JSON what is seen.

``python tests/support/browser.py URL WORDS``: Chromium, out of the package PyQt6-WebEngine, at the
width of a telephone. WORDS are put into the page's search.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["QT_QPA_PLATFORM"] = "offscreen"
os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = "--no-sandbox --disable-gpu"

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineCore import QWebEnginePage
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

WIDTH, HEIGHT = 400, 800

LOOK = """JSON.stringify({
    title: document.title,
    heading: document.querySelector("h1").innerText,
    overflow: document.documentElement.scrollWidth - window.innerWidth,
    height: document.querySelector("article").getBoundingClientRect().height,
    broken: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
})"""

SEARCH = """
const box = document.querySelector("input.md-search__input");
document.querySelector("#__search").checked = true;
box.focus(); box.value = WORDS;
box.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
box.dispatchEvent(new Event("input", {bubbles: true}));
"""

FOUND = "JSON.stringify([...document.querySelectorAll('.md-search-result__link')].map(a => a.href))"


class Page(QWebEnginePage):
    """Notes what the page writes to its console."""

    console: list[str]

    def javaScriptConsoleMessage(self, level: Any, message: Any, line: Any, source: Any) -> None:
        self.console.append(f"{source}:{line}: {message}")


def main(url: str, words: str) -> None:
    app = QApplication(sys.argv)
    view, page = QWebEngineView(), Page()
    page.console, seen = [], {}
    view.setPage(page)
    view.resize(WIDTH, HEIGHT)

    def looked(text: str) -> None:
        seen.update(json.loads(text))
        page.runJavaScript(SEARCH.replace("WORDS", json.dumps(words)))
        ask()

    def ask() -> None:
        page.runJavaScript(FOUND, found)

    def found(text: str) -> None:
        if text == "[]":
            QTimer.singleShot(100, ask)  # the index is being read; the test has a limit of time
            return
        print(json.dumps({**seen, "found": json.loads(text), "console": page.console}))
        app.quit()

    view.loadFinished.connect(lambda _: page.runJavaScript(LOOK, looked))
    view.load(QUrl(url))
    view.show()
    app.exec()
    view.setPage(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
