"""Every method has a full name and works to cite, and the entries are sound BibTeX."""

import re
import sys

import pytest

from flatfold import detectors
from flatfold.detectors import Work, bibtex, cited_works, full_name, methods, register
from flatfold.detectors.registry import METHODS


def test_every_method_has_a_full_name_and_a_paper_or_is_of_this_library():
    """FLATFOLD is the work to cite for a method of this library."""
    for name in methods():
        assert full_name(name), f"{name} has no full name. Add full_name= to its @register."
        assert cited_works(name), f"{name} has nothing to cite. Add cite=(PAPER,) to its @register."
        module, work = sys.modules[METHODS[name].factory.__module__], cited_works(name)[0]
        named = all(word in (module.__doc__ or "") for word in (str(work.year), work.short.split()[0]))
        assert work.is_library or named, f"The docstring of {module.__name__} must name {work.short}."


def test_entries_are_bibtex_with_every_field_and_a_link_that_is_one():
    works = {work for name in methods() for work in cited_works(name)}
    assert len(works) == len({work.key for work in works}), "two works have the same key"
    for work in works:
        entry = work.bibtex
        assert re.match(rf"@(inproceedings|article|software){{{work.key},\n", entry)
        assert entry.count("{") == entry.count("}")
        assert work.is_library or work.venue in entry
        assert str(work.year) in entry
        assert work.title in entry
        assert not work.link or (work.link.startswith("https://") and f"url = {{{work.link}}}" in entry)
        assert all(" " in author for author in work.authors)
    assert bibtex("fold-r").count("@") == 2
    assert bibtex("mahalanobis") == bibtex("mds")


def test_a_method_of_ones_own_may_have_a_citation_and_a_wrong_name_is_an_error(monkeypatch):
    monkeypatch.setattr("flatfold.detectors.registry.METHODS", METHODS.copy())
    register("mine")(detectors.Msp)
    assert (full_name("mine"), cited_works("mine")) == ("", ())
    with pytest.raises(ValueError, match="outside"):
        bibtex("mine")
    draft = Work("me2026", "Mine", ("A. Author",), 2026)
    register("cited", full_name="Something new", cite=[draft])(detectors.Msp)
    assert (full_name("cited"), cited_works("cited"), draft.short) == ("Something new", (draft,), "Author, 2026")
    assert bibtex("cited").startswith("@misc{me2026,")
    with pytest.raises(TypeError, match="comma"):
        register("comma", cite=draft)(detectors.Msp)
    with pytest.raises(ValueError, match="msp"):
        bibtex("msb")
