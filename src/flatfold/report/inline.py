"""An SVG file as an element of a page."""

import re
from html import escape


def for_a_page(svg: str, name: str, label: str) -> str:
    """Return an SVG file as an element that can stand beside others in a page.

    Its size and its rule for all elements go, for both would be the page's; ids stay where something refers to them.

    Args:
        svg: The file.
        name: Before all of its ids, which makes them its own.
        label: What is read out in place of the picture.
    """
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    head = f'<svg {box[0]} role="img" aria-label="{escape(label)}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return re.sub(r"\n\s*", "\n", head + svg[svg.index(">") + 1 :])
