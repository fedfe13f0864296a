"""The page of the service in a real browser, with a real service behind it."""

import io
import re
import shutil
import threading
import time
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from torch import nn

import flatfold as ff
from flatfold.models.images import ArrayImages
from flatfold.serve.app import create_app
from flatfold.serve.run import bind, server_of
from flatfold.serve.settings import Settings
from tests.four_classes import known, make_model

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome on the path")

expect = playwright.expect if BROWSER else None
TRANSFORM = ff.Transform(mode="L", mean=(0.0,), std=(0.4,))
NAMES = ("ant", "bee", "cat", "dog")
TOKEN = "a-token-of-sufficient-length"
BARS, MOST_CARDS, AT_ONCE = 40, 60, 4
UNREACHABLE = "The service cannot be reached. Is it still running, and the network up? Then try again."


def pictures(x):
    """Inputs of the four classes as grey images of 4 x 2 pixels."""
    return (102 * x).round().clamp(0, 255).byte().numpy().reshape(-1, 2, 4)


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


KNOWN = [png(array) for array in pictures(known(20, seed=3)[0])]
UNKNOWN = png(np.full((2, 4), 100, np.uint8))  # a bit of every class


def file(name, content, kind="image/png"):
    return {"name": name, "mimeType": kind, "buffer": content}


def make_guard(method="autofold", **options):
    x, y = known(400)
    model = nn.Sequential(nn.Flatten(), make_model())
    return ff.Guard.fit(model, ArrayImages(pictures(x), y.numpy(), TRANSFORM), method, 0.05, **options)


@contextmanager
def serving(guard, port=0, **settings):
    """A service that ends with the block, so that a test can see one die; gives its address."""
    bound = bind("127.0.0.1", port)
    server = server_of(create_app(guard, Settings(**settings)))
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(60)
        bound.close()
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def guard():
    return make_guard()


@pytest.fixture
def address(guard):
    with serving(guard, names=NAMES) as started:
        yield started


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])  # there is none for root
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Return a function that opens a page; none may complain, break the policy, or ask for anything outside."""
    contexts, complaints, requests, homes = [], [], [], []

    def noted(message):
        if not message.text.startswith("Failed to load resource"):  # which the page itself must tell
            complaints.append(message.text)

    def opened(address, width=1280, script="", **options):
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        context.add_init_script(script)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", noted)
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        homes.append(address)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    assert requests
    assert all(url.startswith((*homes, "data:", "blob:" + homes[0])) for url in requests)


def give(page, *files):
    page.set_input_files("#files", list(files))


def cards(page, state=""):
    return page.locator(f"#cards .card{state}")


def plain(text):
    return text.replace("\u00a0", " ").replace("−", "-")


def number(text):
    """The number that the page wrote, also as 1.2·10⁻⁵."""
    ordinary = plain(text).translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    return float(re.sub(r"·10(?=-?\d)", "e", ordinary))


def verdict_on(guard, content):
    return guard(TRANSFORM(np.array(Image.open(io.BytesIO(content))))[None])


@pytest.mark.parametrize(("content", "verdict"), [(KNOWN[0], "known"), (UNKNOWN, "unknown")], ids=["known", "unknown"])
def test_a_card_says_what_the_guard_says(visit, address, guard, content, verdict):
    page = visit(address)
    give(page, file("a.png", content))
    card = cards(page, f".{verdict}")
    expect(card).to_have_count(1)
    said = verdict_on(guard, content)
    name = NAMES[int(said.logits.argmax())]
    assert bool(said.is_ood) == (verdict == "unknown")
    assert card.locator(".verdict").text_content() == verdict
    assert card.locator(".class").text_content() == (name if verdict == "known" else f"taken for {name}")
    p_value, score = re.fullmatch(r"p = (\S+) · score (\S+)", card.locator(".numbers").text_content()).groups()
    assert number(p_value) == pytest.approx(float(said.p_value), rel=0.05)
    assert number(score) == pytest.approx(float(said.score), rel=1e-3)
    (why,) = guard.explain(TRANSFORM(np.array(Image.open(io.BytesIO(content))))[None], NAMES)
    assert str(why).endswith(": " + plain(card.locator(".why").text_content()))
    assert card.locator(".file").text_content() == "a.png"
    assert card.locator("img").evaluate("image => [image.naturalWidth, image.naturalHeight]") == [4, 2]
    assert page.locator("[role=status]").text_content() == f"a.png: {verdict}, {name}, p = {p_value}."


def test_known_and_unknown_differ_by_more_than_colour(visit, address):
    page = visit(address)
    give(page, file("a.png", KNOWN[0]), file("b.png", UNKNOWN), file("c.png", b"no image"))
    expect(cards(page, ":not(.waiting)")).to_have_count(3)
    sign = "card => getComputedStyle(card.querySelector('.sign'), '::before').content"
    signs = [cards(page, state).evaluate(sign) for state in (".known", ".unknown", ".failed")]
    assert signs == ['"✓"', '"?"', '"!"']
    assert cards(page).locator(".verdict").all_text_contents() == ["not scored", "unknown", "known"]


def test_without_names_a_class_is_a_number_and_without_pairs_there_is_no_explanation(visit):
    guard = make_guard("msp")
    with serving(guard) as address:
        page = visit(address)
        give(page, file("a.png", KNOWN[0]))
        expect(cards(page, ".known .class")).to_have_text(f"class {int(verdict_on(guard, KNOWN[0]).logits.argmax())}")
        assert not cards(page).locator(".why").is_visible()


def test_the_head_says_what_is_guarded(visit, address):
    page = visit(address)
    expect(page.locator("#guarded")).to_have_text(
        "autofold guards a network of 4 classes. It was calibrated on 200 samples: of images like these at most 5 % "
        "raise an alarm."
    )


def test_counters_and_histogram_move_with_every_image(visit, address):
    page = visit(address)
    expect(page.locator("#summary")).to_have_text("Nothing seen yet.")
    assert [page.locator(f"#{name}").text_content() for name in ("seen", "alarms", "rate", "drift")] == [*"00––"]
    assert page.locator("#chart .calibration").count() == 1
    assert page.locator("#chart .live").count() == page.locator("#chart .last").count() == 0
    give(page, file("a.png", KNOWN[0]))
    expect(page.locator("#seen")).to_have_text("1")
    expect(page.locator("#chart .last.known")).to_have_count(1)
    bars = page.locator("#chart .live")
    before, place = bars.get_attribute("d"), page.locator("#chart .last").bounding_box()["x"]
    give(page, file("b.png", UNKNOWN))
    expect(page.locator("#seen")).to_have_text("2")
    expect(page.locator("#chart .last.unknown")).to_have_count(1)
    assert bars.get_attribute("d") != before
    assert page.locator("#chart .last").bounding_box()["x"] > place
    assert page.locator("#alarms").text_content() == "1"
    assert plain(page.locator("#rate").text_content()) == "50 %"
    assert plain(page.locator("#allowed").text_content()) == ", 5 % allowed"


def test_the_summary_is_that_of_a_monitor(visit, address, guard):
    page = visit(address)
    monitor = guard.monitor()
    for content in (*KNOWN[:3], UNKNOWN):
        monitor.add(verdict_on(guard, content))
        give(page, file("a.png", content))
    expect(page.locator("#seen")).to_have_text("4")
    expect(page.locator("#summary")).to_have_text(str(monitor).replace("\n", " "))
    assert not page.locator(".much").count()
    give(page, *[file("b.png", UNKNOWN)] * 6)
    expect(page.locator("#seen")).to_have_text("10")
    expect(page.locator("#summary")).to_contain_text("more than chance")
    assert page.locator(".much").evaluate_all("all => all.map((each) => each.id)") == ["rate", "drift"]


def test_what_others_send_is_seen_within_seconds(visit, address, guard):
    page, other = visit(address), visit(address)
    expect(page.locator("#seen")).to_have_text("0")
    give(other, file("a.png", UNKNOWN))
    expect(page.locator("#alarms")).to_have_text("1", timeout=10_000)
    assert cards(page).count() == 0


def oracle(edges, counts, live):
    """Shares of 40 bars, and of one below and one beyond: slowly, and bin by bin."""
    edges = np.array([np.nan if edge is None else edge for edge in edges])
    finite = edges[1:][~np.isnan(edges[1:])]
    logarithmic = finite[0] > 0 and finite[-1] / finite[0] > 100
    scale = np.log10 if logarithmic else np.asarray
    filled = [top for top, a, b in zip(finite, counts, live, strict=False) if a or b]
    ends = np.linspace(scale(finite[0]), scale(finite[-1] if logarithmic else max(filled)), BARS + 1)
    shares = np.zeros(BARS + 2)
    for number, ((low, high), count) in enumerate(zip(pairwise(edges), counts, strict=True)):
        if number == 0 or np.isnan(high):
            shares[0 if number == 0 else -1] += count
            continue
        for bar, (left, right) in enumerate(pairwise(ends)):
            inside = max(0.0, min(right, scale(high)) - max(left, scale(low)))
            shares[1 + bar] += count * inside / (scale(high) - scale(low))
    return shares / max(1, sum(counts)), (10.0**ends if logarithmic else ends)


@pytest.mark.parametrize(("method", "ticks"), [("autofold", ["0.1", "1", "10"]), ("fold", None), ("ebo", None)])
def test_the_histogram_has_the_shares_of_an_obvious_count(visit, method, ticks):
    guard = make_guard(method)
    with serving(guard) as address:
        page = visit(address)
        give(page, *(file("a.png", content) for content in [*KNOWN[:7], UNKNOWN, png(np.zeros((2, 4), np.uint8))]))
        expect(page.locator("#seen")).to_have_text("9")
        stream = page.request.get(address + "stream").json()
        rows = page.locator("#table tbody tr").evaluate_all(
            "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        labels = page.locator("#chart text").all_text_contents()
    beyond = stream["edges"][-1] is None
    assert beyond == (method == "ebo")
    assert len(rows) == BARS + 1 + beyond
    for column, name in ((1, "calibration"), (2, "live")):
        shares, _ = oracle(stream["edges"], stream[name], stream["calibration" if column == 2 else "live"])
        shown = [number(row[column].replace("%", "")) / 100 for row in rows]
        assert shown == pytest.approx(shares[: len(rows)], rel=0.051, abs=1e-6)
        assert sum(shown) == pytest.approx(1, abs=0.02)
    _, ends = oracle(stream["edges"], stream["calibration"], stream["live"])
    first, last = rows[0][0], rows[BARS][0]
    assert number(first.removeprefix("up to ")) == pytest.approx(ends[0], rel=0.006)
    assert [number(end) for end in last.split(" to ")] == pytest.approx(ends[-2:], rel=0.006)
    assert ticks is None or [label for label in labels if label in ("0.01", "0.1", "1", "10", "100")] == ticks
    assert ("score, logarithmic" in " ".join(labels)) == (method == "autofold")


def test_bars_stand_on_the_axis_and_are_as_high_as_their_share(visit, address):
    page = visit(address)
    expect(page.locator("#chart .calibration")).to_have_count(1)
    stream = page.request.get(address + "stream").json()
    shares, _ = oracle(stream["edges"], stream["calibration"], stream["live"])
    path = page.locator("#chart .calibration").get_attribute("d")
    base = float(re.match(r"M\S+ ([\d.]+)", path)[1])
    heights = [base - float(y) for y in re.findall(r"V([\d.]+)H", path)]
    assert np.array(heights) / max(heights) == pytest.approx(shares[: len(heights)] / shares.max(), abs=1e-6)


def test_the_threshold_stands_between_what_is_known_and_what_is_not(visit, address, guard):
    page = visit(address)
    line = page.locator("#chart .threshold")
    expect(line).to_have_count(1)
    told = page.locator("#chart .alarm").text_content()
    assert number(told.removeprefix("alarm above ")) == pytest.approx(float(guard.calibration.threshold), rel=0.006)
    for content, sign in ((KNOWN[0], -1), (UNKNOWN, 1)):
        give(page, file("a.png", content))
        mark = page.locator(f"#chart .last.{'known' if sign < 0 else 'unknown'}")
        expect(mark).to_have_count(1)
        box = mark.bounding_box()
        assert sign * (box["x"] + box["width"] / 2 - line.bounding_box()["x"]) > 0


def test_a_threshold_for_each_class_is_no_line(visit):
    with serving(make_guard(per_class=True)) as address:
        page = visit(address)
        expect(page.locator("#threshold-key")).to_have_text("a threshold for each class")
        assert page.locator("#chart .calibration").count() == 1
        assert page.locator("#chart .threshold").count() == page.locator("#chart .zone").count() == 0
        expect(page.locator("#guarded")).to_contain_text("raise an alarm, in each class.")


def test_a_bar_that_rises_out_of_the_picture_says_its_share(visit, address):
    page = visit(address)
    give(page, *[file("a.png", UNKNOWN)] * 2)
    expect(page.locator("#seen")).to_have_text("2")
    row = max(page.locator("#table tbody td:last-child").all_text_contents(), key=lambda text: number(text[:-2]))
    expect(page.locator("#chart .peak")).to_have_text(f"{row} ↑")


FAULTS = {
    "broken": file("a.png", KNOWN[0][:50]),
    "no image": file("a.png", b"not at all"),
    "empty": file("a.png", b""),
    "wrong type": file("a.txt", b"some words", "text/plain"),
    "wrong size": file("a.png", png(np.zeros((5, 5), np.uint8))),
    "too large": file("a.png", bytes(3_000_000)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_scored_shows_the_sentence_of_the_service(visit, guard, fault):
    sent = FAULTS[fault]
    with serving(guard, max_body=1_000_000) as address:
        page = visit(address)
        with page.expect_response(re.compile("score")) as answered:
            give(page, sent)
        expect(cards(page, ".failed")).to_have_count(1)
        assert answered.value.status >= 400
        assert cards(page).locator(".why").text_content() == answered.value.json()["error"]
        assert page.locator("#status").text_content() == f"{sent['name']}: not scored. {answered.value.json()['error']}"
        assert not page.get_by_role("button", name="Try again").is_visible()
        expect(page.locator("#seen")).to_have_text("0")


@pytest.mark.parametrize("kind", ["", "application/octet-stream"])
def test_a_file_without_a_type_is_taken_for_an_image_and_not_for_features(visit, address, kind):
    page = visit(address)
    page.evaluate(
        """([bytes, type]) => {
            const moved = new DataTransfer();
            moved.items.add(new File([new Uint8Array(bytes)], "a", { type }));
            dispatchEvent(new DragEvent("drop", { dataTransfer: moved, cancelable: true }));
        }""",
        [list(KNOWN[0]), kind],
    )
    expect(cards(page, ".known")).to_have_count(1)


def test_a_service_of_features_says_so(visit, guard):
    with serving(guard.judge) as address:
        page = visit(address)
        with page.expect_response(re.compile("score")) as answered:
            give(page, file("a.png", KNOWN[0]))
        assert answered.value.status == 415
        expect(cards(page, ".failed").locator(".why")).to_have_text(answered.value.json()["error"])


def test_a_dead_service_is_told_and_one_that_comes_back_is_used_again(visit, guard):
    with serving(guard) as address:
        page = visit(address)
        expect(page.locator("#seen")).to_have_text("0")
    give(page, file("a.png", UNKNOWN))
    expect(cards(page, ".failed").locator(".why")).to_have_text(UNREACHABLE)
    expect(page.locator("#silent")).to_have_text(UNREACHABLE)
    with serving(guard, port=int(address.rsplit(":", 1)[1].strip("/"))):
        page.get_by_role("button", name="Try again").click()
        expect(cards(page, ".unknown")).to_have_count(1)
        assert not page.get_by_role("button", name="Try again").is_visible()
        expect(page.locator("#silent")).to_have_text("", timeout=10_000)
        expect(page.locator("#seen")).to_have_text("1")


def test_a_connection_that_ends_while_a_file_is_sent_is_no_dead_service(visit, address):
    page = visit(address)
    page.route("**/score*", lambda route: route.abort("connectionreset"))
    give(page, file("a.png", KNOWN[0]))
    expect(cards(page, ".failed").locator(".why")).to_have_text(
        "The service is there, but ended the connection while this file was sent. Is it too large? Try a smaller one."
    )


def test_an_answer_of_something_in_between_is_told_by_its_status(visit, address):
    page = visit(address)
    page.route("**/score*", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    give(page, file("a.png", KNOWN[0]))
    expect(cards(page, ".failed").locator(".why")).to_have_text(
        "The service answered with status 502 and said no more. Try again."
    )


def test_the_token_is_asked_for_refused_and_taken_and_what_waited_is_scored(visit, guard):
    with serving(guard, names=NAMES, token=TOKEN) as address:
        page = visit(address)
        field, refused = page.get_by_label("Token"), page.locator("#refused")
        expect(field).to_be_focused()
        assert field.get_attribute("type") == "password"
        assert not page.locator("#told").is_visible()
        assert page.locator("#unheard").is_visible()
        give(page, file("a.png", KNOWN[0]), file("b.png", UNKNOWN))
        expect(page.locator("#status")).to_have_text("2 images waiting for the token.")
        field.fill("another-token-of-some-length")
        page.keyboard.press("Enter")
        expect(refused).to_have_text(
            "This token was refused. Is it complete, and the one of this service? Type it again."
        )
        field.fill("schlüssel mit leerzeichen")
        page.keyboard.press("Enter")
        expect(refused).to_have_text("A token is a row of letters, digits and signs without spaces. Type it again.")
        assert cards(page).count() == 0
        field.fill(f" {TOKEN} ")
        page.keyboard.press("Enter")
        expect(cards(page, ":not(.waiting)")).to_have_count(2)
        expect(page.locator("#seen")).to_have_text("2")
        assert not page.locator("#unlock").is_visible()
        assert not page.locator("#unheard").is_visible()
        assert field.input_value() == ""
        kept = "[document.cookie, location.href, localStorage.length, sessionStorage.length, document.body.innerHTML]"
        assert TOKEN not in str(page.evaluate(kept))
        assert page.evaluate("localStorage.length + sessionStorage.length") == 0


def test_a_token_that_is_asked_for_later_on_lets_the_same_image_through(visit, guard):
    with serving(guard) as address:
        page = visit(address)
        expect(page.locator("#seen")).to_have_text("0")
    port = int(address.rsplit(":", 1)[1].strip("/"))
    page.route("**/stream", lambda route: route.abort())  # so that the image is the first to be refused
    with serving(guard, port=port, token=TOKEN):
        give(page, file("a.png", UNKNOWN))
        expect(cards(page, ".waiting").locator(".verdict")).to_have_text("waits for the token")
        page.unroute("**/stream")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Unlock").click()
        expect(cards(page, ".unknown")).to_have_count(1)
        assert cards(page).count() == 1


def test_a_file_that_is_gone_when_its_turn_comes_is_told(visit, guard, tmp_path):
    path = tmp_path / "gone.png"
    path.write_bytes(KNOWN[0])
    with serving(guard, token=TOKEN) as address:
        page = visit(address)
        expect(page.get_by_label("Token")).to_be_focused()
        page.set_input_files("#files", path)
        path.unlink()
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(cards(page, ".failed").locator(".why")).to_have_text(
            "This file cannot be read. Is it a folder, or was it moved since? Choose the images themselves."
        )


def test_names_are_text_whatever_they_look_like(visit, guard):
    evil = "<img src=x onerror=alert(1)>"
    with serving(guard, names=tuple(f"{evil}{name}" for name in NAMES)) as address:
        page = visit(address)
        give(page, file(f"{evil}.png", KNOWN[0]), file(f"{evil}.txt", b"words", "text/plain"))
        expect(cards(page, ":not(.waiting)")).to_have_count(2)
        assert page.locator("img").count() == 2
        assert page.locator("[src=x]").count() == 0
        assert cards(page).locator(".file").all_text_contents() == [f"{evil}.txt", f"{evil}.png"]
        assert cards(page, ".known").locator(".class").text_content().startswith(evil)
        assert cards(page, ".known").locator(".why").text_content().count(evil) > 1


def test_a_dropped_and_a_pasted_image_are_scored_and_the_page_stays(visit, address):
    page = visit(address)
    page.evaluate(
        """(bytes) => {
            const moved = (name) => {
                const carried = new DataTransfer();
                carried.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
                return carried;
            };
            const drag = (type, options) => {
                const event = new DragEvent(type, { bubbles: true, cancelable: true, ...options });
                document.querySelector("h1").dispatchEvent(event);
                return [event.defaultPrevented, document.body.classList.contains("over")];
            };
            window.seen = [drag("dragover", {}), drag("dragleave", {}), drag("dragover", {}),
                drag("drop", { dataTransfer: moved("dropped.png") })];
            const clipboardData = moved("pasted.png");
            document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
        }""",
        list(KNOWN[0]),
    )
    assert page.evaluate("window.seen") == [[True, True], [False, False], [True, True], [True, False]]
    expect(cards(page, ".known")).to_have_count(2)
    assert cards(page).locator(".file").all_text_contents() == ["pasted.png", "dropped.png"]


def test_few_requests_are_under_way_at_once_one_for_each_image_and_the_newest_comes_first(visit, address):
    page, held = visit(address), []
    page.route("**/score*", lambda route: held.append(route))
    names = [f"{number}.png" for number in range(6)]
    give(page, *(file(name, KNOWN[0]) for name in names))
    expect(cards(page, ".waiting")).to_have_count(AT_ONCE)
    expect(page.locator("#status")).to_have_text("2 images waiting.")
    page.wait_for_timeout(300)
    assert len(held) == AT_ONCE
    for route in held:
        route.continue_()
    page.wait_for_timeout(300)
    assert len(held) == 6
    for route in held[AT_ONCE:]:
        route.continue_()
    expect(cards(page, ".known")).to_have_count(6)
    assert cards(page).locator(".file").all_text_contents() == names[::-1]
    assert all(route.request.url == f"{address}score?explain=true" for route in held)


COUNTING = """
window.made = []; window.ended = [];
const { createObjectURL, revokeObjectURL } = URL;
URL.createObjectURL = (file) => { const made = createObjectURL.call(URL, file); window.made.push(made); return made; };
URL.revokeObjectURL = (address) => { window.ended.push(address); revokeObjectURL.call(URL, address); };
"""


def test_only_the_last_cards_stay_and_no_picture_is_kept(visit, address):
    page = visit(address, script=COUNTING)
    give(page, file("first.png", KNOWN[0]), *(file("a.png", KNOWN[1]) for _ in range(MOST_CARDS)), file("b.png", b"no"))
    expect(page.locator("#seen")).to_have_text(str(MOST_CARDS + 1), timeout=30_000)
    expect(cards(page, ".failed")).to_have_count(1)
    expect(cards(page)).to_have_count(MOST_CARDS)
    assert "first.png" not in cards(page).locator(".file").all_text_contents()
    page.wait_for_timeout(200)
    assert len(page.evaluate("window.made")) == MOST_CARDS + 2
    assert page.evaluate("window.made.toSorted().join() === window.ended.toSorted().join()")
    assert cards(page, ".failed").locator(".picture.blank").count() == 1
    assert cards(page, ".known").first.locator("img").evaluate("image => image.naturalWidth") == 4


def test_clear_ends_what_is_under_way_and_what_waits(visit, address):
    page, held = visit(address), []
    expect(page.locator("#seen")).to_have_text("0")
    page.route("**/score*", lambda route: held.append(route))
    give(page, *(file("a.png", UNKNOWN) for _ in range(6)))
    expect(cards(page, ".waiting")).to_have_count(AT_ONCE)
    page.get_by_role("button", name="Clear").click()
    page.wait_for_timeout(300)
    assert len(held) == AT_ONCE
    assert cards(page).count() == 0
    assert page.locator("#none").is_visible()
    assert not page.get_by_role("button", name="Clear").is_visible()
    expect(page.locator("#files")).to_be_focused()
    page.unroute("**/score*")
    give(page, file("b.png", KNOWN[0]))
    expect(cards(page, ".known")).to_have_count(1)
    expect(page.locator("#seen")).to_have_text("1")


def test_the_keyboard_alone_is_enough(visit, address, tmp_path):
    page, choosers = visit(address), []
    page.on("filechooser", lambda chooser: choosers.append(chooser))
    page.wait_for_timeout(300)  # the browser hears of this only by and by
    (tmp_path / "a.png").write_bytes(KNOWN[0])
    page.keyboard.press("Tab")
    expect(page.locator("#files")).to_be_focused()
    assert page.locator(".area").evaluate("area => getComputedStyle(area).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_timeout(500)
    (chooser,) = choosers
    assert chooser.is_multiple()
    chooser.set_files(tmp_path / "a.png")
    expect(cards(page, ".known")).to_have_count(1)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("#table table").is_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Clear")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert cards(page).count() == 0


def crowded(page):
    """Give a page everything that it can show."""
    give(page, file("a" * 200 + ".png", KNOWN[0]), file("b b.png", UNKNOWN), file("c.txt", b"words", "text/plain"))
    expect(cards(page, ":not(.waiting)")).to_have_count(3)
    expect(page.locator("#seen")).to_have_text(re.compile("[1-9]"))
    page.locator("summary").click()


@pytest.mark.parametrize("width", [320, 360, 800, 1280])
def test_the_page_never_scrolls_sideways(visit, guard, width):
    with serving(guard, names=tuple(name * 60 for name in NAMES), token=TOKEN) as address:
        page = visit(address, width=width)
        expect(page.get_by_label("Token")).to_be_focused()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        crowded(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        chart = page.locator("#chart").bounding_box()
        for label in page.locator("#chart text").all():
            box = label.bounding_box()
            assert box["x"] >= chart["x"] - 1
            assert box["x"] + box["width"] <= min(width, chart["x"] + chart["width"] + 1)


COLOURS = """() => [...document.querySelectorAll("body *")].flatMap((each) => {
    const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !each.getClientRects().length || each.closest("title, noscript, script, svg")) return [];
    let behind = each;
    while (behind && /^rgba\\(.*, 0\\)$/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
    return [[each.textContent, getComputedStyle(each).color, getComputedStyle(behind).backgroundColor]];
}).concat([...document.querySelectorAll("#chart text")].map((each) =>
    [each.textContent, getComputedStyle(each).fill, getComputedStyle(document.body).backgroundColor]))"""


def luminance(colour):
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_text_can_be_read_by_day_and_by_night(visit, address):
    papers = set()
    for scheme in ("light", "dark"):
        page = visit(address, color_scheme=scheme)
        crowded(page)
        page.wait_for_timeout(400)  # until the last card has come
        told = page.evaluate(COLOURS)
        assert len(told) > 60
        assert {text: contrast(*pair) for text, *pair in told if contrast(*pair) < 4.5} == {}
        papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(papers) == 2


def test_who_wants_no_motion_gets_none(visit, address):
    moves = "card => getComputedStyle(card).animationName"
    for wanted, name in (("no-preference", "come"), ("reduce", "none")):
        page = visit(address, reduced_motion=wanted)
        give(page, file("a.png", KNOWN[0]))
        expect(cards(page, ".known")).to_have_count(1)
        assert cards(page).evaluate(moves) == name


def test_the_chart_follows_the_width_of_the_window_and_its_bars_tell_their_shares(visit, address):
    page = visit(address)
    expect(page.locator("#chart .hit")).to_have_count(BARS + 1)
    wide = page.locator("#chart .calibration").get_attribute("d")
    page.set_viewport_size({"width": 360, "height": 700})
    expect(page.locator("#chart .calibration")).not_to_have_attribute("d", wide)
    right = page.locator("#chart .hit").last.bounding_box()
    assert right["x"] + right["width"] <= 360
    texts = page.locator("#chart title").all_text_contents()
    rows = page.locator("#table tbody tr").evaluate_all(
        "all => all.map((row) => [...row.cells].map((c) => c.textContent))"
    )
    assert texts == [f"score {where}: calibration {a}, live {b}" for where, a, b in rows]
    assert (
        page.locator("#chart")
        .get_attribute("aria-label")
        .startswith("Histogram of the scores of 200 calibration inputs and 0 live.")
    )


def test_an_unchanged_chart_is_left_alone(visit, address):
    page = visit(address)
    expect(page.locator("#chart .hit")).to_have_count(BARS + 1)
    page.locator("#chart .hit").first.evaluate("hit => hit.classList.add('pointed')")
    for _ in range(2):
        with page.expect_response(re.compile("stream"), timeout=10_000):
            pass
    assert page.locator("#chart .pointed").count() == 1


def test_a_page_that_nobody_sees_does_not_ask(visit, address):
    hidden = "Object.defineProperty(document, 'hidden', { get: () => window.away, configurable: true });"
    page, asked = visit(address, script=f"window.away = false; {hidden}"), []
    expect(page.locator("#seen")).to_have_text("0")
    page.evaluate("window.away = true")
    page.wait_for_timeout(300)
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert asked == []
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange', { bubbles: true }))")
    page.wait_for_timeout(300)
    assert asked == [f"{address}stream"]
