"""The table of methods in the reference, which is kept in the page so that it can be read without the site."""

import os
import re

from tests.docs.page import ROOT, module, read
from tests.golden.pins import RECORD

PAGE = "docs/reference/detectors.md"
TABLE = re.compile(r"(<!-- begin methods\b[^>]*-->\n)(.*?)(\n<!-- end methods -->)", re.DOTALL)


def test_the_reference_has_the_table_of_all_registered_methods():
    made = module("hooks").methods()
    if os.environ.get("FLATFOLD_RECORD"):
        page = TABLE.sub(lambda found: found[1] + made + found[3], read(PAGE))
        (ROOT / PAGE).write_text(page, encoding="utf8")
    ((_, shown, _),) = TABLE.findall(read(PAGE))
    missing = sorted({*made.splitlines()} - {*shown.splitlines()})
    assert shown == made, f"{PAGE} has another table of methods. {RECORD} Missing:\n" + "\n".join(missing)
