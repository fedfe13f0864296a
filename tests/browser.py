"""Pages in a real browser: the set-up that all browser tests share.

The fixtures ``browser`` and ``visit`` are imported by the conftest.py of a folder; a file of browser tests says
``pytestmark = needs_browser``.
"""

import shutil

import pytest

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    expect = sync_playwright = None
else:
    expect.set_options(timeout=30_000)  # milliseconds; a slow machine is no failure

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(sync_playwright is None, reason="needs playwright: pip install playwright"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or google-chrome on the path"),
]


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root has no sandbox
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Return a function that opens a page; no page may log an error, open a dialog or ask another address."""
    contexts, complaints, requests, homes = [], [], [], []

    def note(message):
        if not message.text.startswith("Failed to load resource"):  # the page itself must show that
            complaints.append(message.text)

    def open_page(address, width=1280, script="", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        if script:
            context.add_init_script(script)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", note)
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        homes.extend((address, f"blob:{address}"))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert requests
    assert [url for url in requests if not url.startswith((*homes, "data:"))] == []


def scroll_width(page):
    """Return how wide the page is: more than the window means that it scrolls sideways."""
    return page.evaluate("document.documentElement.scrollWidth")
