"""The page of the service in a real browser, with a real service behind it."""

import re
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from torch import nn

import flatfold as ff
from flatfold.data.images import ArrayImages
from tests.browser import expect, needs_browser, scroll_width
from tests.data.tokenisers import Letters, Reader, make_texts
from tests.four_classes import known, make_model
from tests.serve.small_service import encoded, running

pytestmark = needs_browser
TRANSFORM = ff.Transform(mode="L", mean=(0.0,), std=(0.4,))
NAMES = ("ant", "bee", "cat", "dog")
TOKEN = "a-token-of-sufficient-length"
BARS, MOST_CARDS, AT_ONCE = 40, 60, 4


def pictures(x):
    """Inputs of the four classes as grey images of 4 x 2 pixels."""
    return (102 * x).round().clamp(0, 255).byte().numpy().reshape(-1, 2, 4)


KNOWN_PIXELS = pictures(known(20, seed=3)[0])
OOD_PIXELS = np.full((2, 4), 100, np.uint8)  # a bit of every class
KNOWN, OOD = [encoded(array) for array in KNOWN_PIXELS], encoded(OOD_PIXELS)


def file(name, content, kind="image/png"):
    return {"name": name, "mimeType": kind, "buffer": content}


def make_guard(method="autofold", **options):
    x, y = known(400)
    model = nn.Sequential(nn.Flatten(), make_model())
    return ff.Guard.fit(model, ArrayImages(pictures(x), y.numpy(), TRANSFORM), method=method, fpr=0.05, **options)


@contextmanager
def serving(served, /, **settings):
    """A service that ends with the block; gives its address."""
    with running(served, **settings) as service:
        yield f"http://127.0.0.1:{service.port}/"


@pytest.fixture(scope="module")
def guard():
    return make_guard()


@pytest.fixture
def address(guard):
    with serving(guard, names=NAMES) as started:
        yield started


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


@pytest.mark.parametrize(("array", "verdict"), [(KNOWN_PIXELS[0], "ID"), (OOD_PIXELS, "OOD")])
def test_a_card_shows_the_verdict_of_the_guard(visit, address, guard, array, verdict):
    page = visit(address)
    give(page, file("a.png", encoded(array)))
    card = cards(page, f".{verdict}")
    expect(card).to_have_count(1)
    wanted = guard(TRANSFORM(array)[None])
    name = NAMES[int(wanted.logits.argmax())]
    assert bool(wanted.is_ood) == (verdict == "OOD")
    assert card.locator(".verdict").text_content() == verdict
    assert name in card.locator(".class").text_content()
    p_value, score = re.fullmatch(r"p = (\S+) · score (\S+)", card.locator(".numbers").text_content()).groups()
    assert number(p_value) == pytest.approx(float(wanted.p_value), rel=0.05)
    assert number(score) == pytest.approx(float(wanted.score), rel=1e-3)
    (why,) = guard.explain(TRANSFORM(array)[None], NAMES)
    assert str(why).endswith(": " + plain(card.locator(".why").text_content()))
    assert card.locator(".file").text_content() == "a.png"
    assert card.locator("img").evaluate("image => [image.naturalWidth, image.naturalHeight]") == [4, 2]
    assert verdict in page.locator("[role=status]").text_content()


def test_counters_histogram_and_summary_follow_every_image(visit, address, guard):
    page = visit(address)
    sentence = "autofold guards Sequential, a network of 4 classes. It was calibrated on 200 samples: at most 5 % of"
    assert plain(page.locator("#guarded").text_content()).startswith(sentence)
    assert [page.locator(f"#{name}").text_content() for name in ("seen", "alarms", "rate", "drift")] == [*"00––"]
    assert page.locator("#chart .calibration").count() == 1
    assert page.locator("#chart .live").count() == page.locator("#chart .last").count() == 0
    give(page, file("a.png", KNOWN[0]))
    expect(page.locator("#seen")).to_have_text("1")
    line, mark = page.locator("#chart .threshold"), page.locator("#chart .last.ID")
    expect(mark).to_have_count(1)
    assert mark.bounding_box()["x"] < line.bounding_box()["x"]
    give(page, file("b.png", OOD))
    expect(page.locator("#seen")).to_have_text("2")
    mark = page.locator("#chart .last.OOD")
    expect(mark).to_have_count(1)
    assert mark.bounding_box()["x"] > line.bounding_box()["x"]
    told = page.locator("#chart .alarm").text_content()
    assert number(told.split()[-1]) == pytest.approx(float(guard.calibration.threshold), rel=0.006)
    assert page.locator("#alarms").text_content() == "1"
    assert plain(page.locator("#rate").text_content()) == "50 %"
    monitor = guard.monitor()
    for array in (KNOWN_PIXELS[0], OOD_PIXELS):
        monitor.add(guard(TRANSFORM(array)[None]))
    expect(page.locator("#summary")).to_have_text(str(monitor).replace("\n", " "))
    give(page, *[file("b.png", OOD)] * 8)
    expect(page.locator("#seen")).to_have_text("10")
    assert page.locator(".much").evaluate_all("all => all.map((each) => each.id)") == ["rate", "drift"]


def oracle(edges, counts, live):
    """Shares of 40 bars, and of one below and one beyond: slowly, and bin by bin."""
    edges = np.array([np.nan if edge is None else edge for edge in edges])
    finite = edges[1:][~np.isnan(edges[1:])]
    logarithmic = finite[0] > 0 and finite[-1] / finite[0] > 100
    scale = np.log10 if logarithmic else np.asarray
    filled = [top for top, a, b in zip(finite, counts, live, strict=False) if a or b]
    ends = np.linspace(scale(finite[0]), scale(finite[-1] if logarithmic else max(filled)), BARS + 1)
    shares = np.zeros(BARS + 2)
    for place, ((low, high), count) in enumerate(zip(pairwise(edges), counts, strict=True)):
        if place == 0 or np.isnan(high):
            shares[0 if place == 0 else -1] += count
            continue
        for bar, (left, right) in enumerate(pairwise(ends)):
            inside = max(0.0, min(right, scale(high)) - max(left, scale(low)))
            shares[1 + bar] += count * inside / (scale(high) - scale(low))
    return shares / max(1, sum(counts))


def test_the_signs_of_the_default_method_are_bars(visit):
    with serving(make_guard("fourfold"), names=NAMES) as address:
        page = visit(address)
        give(page, file("ood.png", OOD))
        card = cards(page, ".OOD")
        card.locator(".signs dd").nth(4).wait_for()
        assert card.locator(".signs dt").all_text_contents() == ["direction", "length", "margin", "curvature", "doubt"]
        values = [number(text) for text in card.locator(".signs dd").all_text_contents()]
        widths = card.locator(".bar").evaluate_all("bars => bars.map((bar) => +bar.style.getPropertyValue('--share'))")
        assert widths == pytest.approx([min(1, max(0, value / 10)) for value in values], abs=0.006)
        unusual = card.locator(".bar").evaluate_all("bars => bars.map((bar) => bar.classList.contains('unusual'))")
        assert any(unusual)
        assert all(flag == (value >= 2) for flag, value in zip(unusual, values, strict=True) if abs(value - 2) > 0.05)
        signs = "{length: 3159.2, margin: 100, doubt: -1.5}"
        shown = page.evaluate(
            f"const card = document.querySelector('.card.OOD'); showSigns(card, {signs}); card.innerText"
        )
        assert [line for line in shown.splitlines() if line in ("> 100", "100.0", "−1.5")] == ["> 100", "100.0", "−1.5"]


@pytest.mark.parametrize("method", ["autofold", "fold", "ebo"])
def test_the_histogram_has_the_shares_of_an_obvious_count(visit, method):
    with serving(make_guard(method)) as address:
        page = visit(address)
        give(page, *(file("a.png", content) for content in [*KNOWN[:7], OOD, encoded(np.zeros((2, 4), np.uint8))]))
        expect(page.locator("#seen")).to_have_text("9")
        stream = page.request.get(address + "stream").json()
        rows = page.locator("#table tbody tr").evaluate_all(
            "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        path = page.locator("#chart .calibration").get_attribute("d")
        labels = page.locator("#chart .beyond").all_text_contents()
    beyond = stream["edges"][-1] is None
    assert len(rows) == BARS + 1 + beyond
    if beyond:
        last = number(re.fullmatch(r"≥ (\S+)", rows[-1][0])[1])
        assert last == pytest.approx(number(rows[-2][0].split(" to ")[1]))
    assert labels == ([rows[-1][0]] if beyond else [])
    for column, name, other in ((1, "calibration", "live"), (2, "live", "calibration")):
        shares = oracle(stream["edges"], stream[name], stream[other])
        shown = [number(row[column].replace("%", "")) / 100 for row in rows]
        assert shown == pytest.approx(shares[: len(rows)], rel=0.051, abs=1e-6)
        assert sum(shown) == pytest.approx(1, abs=0.02)
    base = float(re.match(r"M\S+ ([\d.]+)", path)[1])  # bars are as high as their share
    heights = [base - float(y) for y in re.findall(r"V([\d.]+)H", path)]
    shares = oracle(stream["edges"], stream["calibration"], stream["live"])
    assert np.array(heights) / max(heights) == pytest.approx(shares[: len(heights)] / shares.max(), abs=1e-6)


def test_files_that_cannot_be_scored_show_the_error_of_the_service(visit, guard):
    faults = {
        "broken": file("a.png", KNOWN[0][:50]),
        "no image": file("a.png", b"not at all"),
        "empty": file("a.png", b""),
        "wrong type": file("a.txt", b"some words", "text/plain"),
        "wrong size": file("a.png", encoded(np.zeros((5, 5), np.uint8))),
        "too large": file("a.png", bytes(3_000_000)),
    }
    with serving(guard, max_body=1_000_000) as address:
        page = visit(address)
        for count, (name, sent) in enumerate(faults.items(), 1):
            with page.expect_response(re.compile("score")) as answered:
                give(page, sent)
            expect(cards(page, ".failed")).to_have_count(count)
            assert answered.value.status >= 400, name
            assert cards(page).first.locator(".why").text_content() == answered.value.json()["error"], name
            assert not page.get_by_role("button", name="Try again").first.is_visible(), name
        expect(page.locator("#seen")).to_have_text("0")


def test_a_dead_service_is_shown_and_one_that_comes_back_is_used_again(visit, guard):
    with serving(guard) as address:
        page = visit(address)
        expect(page.locator("#seen")).to_have_text("0")
    give(page, file("a.png", OOD))
    expect(cards(page, ".failed").locator(".why")).to_contain_text("cannot be reached")
    expect(page.locator("#unreachable")).to_contain_text("cannot be reached")
    with serving(guard, port=int(address.rsplit(":", 1)[1].strip("/"))):
        page.get_by_role("button", name="Try again").click()
        expect(cards(page, ".OOD")).to_have_count(1)
        expect(page.locator("#unreachable")).to_have_text("")
        expect(page.locator("#seen")).to_have_text("1")


def test_the_token_is_asked_for_refused_and_taken_and_nowhere_kept(visit, guard, tmp_path):
    (tmp_path / "gone.png").write_bytes(KNOWN[0])
    with serving(guard, names=NAMES, token=TOKEN) as address:
        page = visit(address)
        field, refused = page.get_by_label("Token"), page.locator("#refused")
        expect(field).to_be_focused()
        assert field.get_attribute("type") == "password"
        assert not page.locator("#counts").is_visible()
        give(page, file("a.png", KNOWN[0]), file("b.png", OOD))
        expect(page.locator("#status")).to_contain_text("waiting for the token")
        page.set_input_files("#files", tmp_path / "gone.png")
        (tmp_path / "gone.png").unlink()
        for wrong, keyword in (("another-token-of-some-length", "rejected"), ("mit leerzeichen", "without spaces")):
            field.fill(wrong)
            page.keyboard.press("Enter")
            expect(refused).to_contain_text(keyword)
        assert cards(page).count() == 0
        field.fill(f" {TOKEN} ")
        page.keyboard.press("Enter")
        expect(cards(page, ":not(.waiting)")).to_have_count(3)
        expect(cards(page, ".failed").locator(".why")).to_contain_text("cannot be read")
        expect(page.locator("#seen")).to_have_text("2")
        assert not page.locator("#unlock").is_visible()
        kept = (
            "[document.cookie, location.href, document.body.innerHTML, JSON.stringify([localStorage, sessionStorage])]"
        )
        assert TOKEN not in str(page.evaluate(kept))


def test_the_guard_and_the_model_are_named(visit, guard):
    with serving(guard, guard="<b>mine</b>.safetensors", model="nets:mine, <i>w</i>.pt") as address:
        text = plain(visit(address).locator("#guarded", has_text="calibrated").text_content())
    assert text.startswith("autofold (<b>mine</b>.safetensors) guards nets:mine, <i>w</i>.pt, a network of 4 classes.")


def test_names_are_text_whatever_they_look_like(visit, guard):
    evil = "<img src=x onerror=alert(1)>"
    with serving(guard, names=tuple(f"{evil}{name}" for name in NAMES)) as address:
        page = visit(address)
        give(page, file(f"{evil}.png", KNOWN[0]), file(f"{evil}.txt", b"words", "text/plain"))
        expect(cards(page, ":not(.waiting)")).to_have_count(2)
        assert (page.locator("img").count(), page.locator("[src=x]").count()) == (2, 0)
        assert cards(page).locator(".file").all_text_contents() == [f"{evil}.txt", f"{evil}.png"]
        assert cards(page, ".ID").locator(".class").text_content().startswith(evil)


def test_dropped_and_pasted_files_are_scored_as_images_even_without_a_type(visit, address):
    page = visit(address)
    page.evaluate(
        """(bytes) => {
            const carry = (name, type) => {
                const carried = new DataTransfer();
                carried.items.add(new File([new Uint8Array(bytes)], name, { type }));
                return carried;
            };
            const drop = (dataTransfer) => {
                const event = new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer });
                document.querySelector("h1").dispatchEvent(event);
                return event.defaultPrevented;
            };
            window.stayed = [drop(carry("a", "image/png")), drop(carry("b", "")),
                drop(carry("c", "application/octet-stream"))];
            const clipboardData = carry("d", "image/png");
            document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
        }""",
        list(KNOWN[0]),
    )
    assert page.evaluate("window.stayed") == [True] * 3
    expect(cards(page, ".ID")).to_have_count(4)
    assert cards(page).locator(".file").all_text_contents() == [*"dcba"]


def test_few_requests_run_at_once_and_clear_ends_them(visit, address):
    page, under_way = visit(address), []
    expect(page.locator("#seen")).to_have_text("0")
    page.route("**/score*", lambda route: under_way.append(route))
    give(page, *(file("a.png", OOD) for _ in range(6)))
    expect(cards(page, ".waiting")).to_have_count(AT_ONCE)
    page.get_by_role("button", name="Clear").click()
    page.wait_for_timeout(300)
    assert len(under_way) == AT_ONCE
    assert cards(page).count() == 0
    expect(page.locator("#files")).to_be_focused()
    page.unroute("**/score*")
    give(page, file("b.png", KNOWN[0]))
    expect(cards(page, ".ID")).to_have_count(1)
    expect(page.locator("#seen")).to_have_text("1")


def test_the_keyboard_alone_is_enough(visit, address):
    page = visit(address)
    expect(page.locator("#seen")).to_have_text("0")
    page.keyboard.press("Tab")
    expect(page.locator("#files")).to_be_focused()
    assert page.locator(".area").evaluate("area => getComputedStyle(area).outlineStyle") == "solid"
    give(page, file("a.png", KNOWN[0]))
    expect(cards(page, ".ID")).to_have_count(1)
    page.locator("#files").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("#table table").is_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Clear")).to_be_focused()
    page.keyboard.press("Enter")
    assert cards(page).count() == 0


@pytest.mark.parametrize("width", [320, 800, 1280])
def test_a_full_page_never_scrolls_sideways(visit, guard, width):
    with serving(guard, names=tuple(name * 60 for name in NAMES)) as address:
        page = visit(address, width=width)
        give(page, file("a" * 200 + ".png", KNOWN[0]), file("b b.png", OOD), file("c.txt", b"words", "text/plain"))
        expect(cards(page, ":not(.waiting)")).to_have_count(3)
        page.locator("summary").click()
        assert scroll_width(page) <= width


def test_a_text_is_scored_and_shown_as_text(visit):
    texts, labels = make_texts()
    guard = ff.Guard.fit(Reader().eval(), (texts, labels), fpr=0.1, loading=ff.Loading(collate=Letters()))
    with running(guard) as service:
        page = visit(f"http://127.0.0.1:{service.port}")
        for text in ["<b>abc</b>", "abcdefg"]:
            page.get_by_label("Text", exact=True).fill(text)
            page.get_by_role("button", name="Score").click()
            card = page.locator(".card").filter(has_text=text)
            expect(card).to_have_count(1)
            verdict = "OOD" if guard(text).is_ood else "ID"
            expect(card.locator(".verdict")).to_have_text(verdict)
            expect(card.locator(".file")).to_have_text(text)
            assert "usual" in card.locator(".why").text_content()
            assert card.locator(".signs dt").count() == len(guard.explain(text)[0].signs)
            assert card.locator(".picture").count() == 0
        page.get_by_label("Text", exact=True).fill("abc deh XYZ")
        page.get_by_role("button", name="Score").click()
        marks = page.locator(".card").filter(has_text="deh").locator(".file mark")
        words = {token.text for token in guard.explain("abc deh XYZ", tokens=True)[0].tokens}
        expect(marks).to_have_count(len(words))
        assert {*marks.all_text_contents()} == words
        page.get_by_role("button", name="Clear").click()
        expect(page.locator(".card")).to_have_count(0)
