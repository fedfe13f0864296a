"""Every method has a full name and works to cite, and the entries are sound BibTeX."""

import re

import pytest

from flatfold import detectors
from flatfold.detectors import bibtex, cited_works, full_name, methods, register
from flatfold.detectors.registry import METHODS


def test_every_method_has_a_full_name_and_a_paper_or_is_of_this_library():
    for name in methods():
        works = cited_works(name)
        assert full_name(name), name
        assert works, name
        module = __import__(METHODS[name].factory.__module__, fromlist=["x"]).__doc__ or ""
        for work in works[:1]:  # the docstring of a method names its paper
            assert work.is_library or all(str(word) in module for word in (work.year, work.short.split()[0])), name


def test_entries_are_bibtex_with_every_field_and_a_link_that_is_one():
    works = {work.key: work for name in methods() for work in cited_works(name)}
    for work in works.values():
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


def test_a_method_of_ones_own_has_no_citation_and_a_wrong_name_is_an_error():
    register("mine")(detectors.Msp)
    try:
        assert (full_name("mine"), cited_works("mine")) == ("", ())
        with pytest.raises(ValueError, match="outside"):
            bibtex("mine")
    finally:
        del METHODS["mine"]
    with pytest.raises(ValueError, match="msp"):
        bibtex("msb")
