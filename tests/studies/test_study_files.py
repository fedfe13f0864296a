"""`studies.autofold.store`, `page` and `tables`: what is kept of a run, and what is said of it."""

from dataclasses import fields

import numpy as np
import pytest

from studies.autofold.measure import Measured
from studies.autofold.page import FILES, PAGE, filled, update
from studies.autofold.selection import verdicts
from studies.autofold.sentences import answer, beside, choices, sections
from studies.autofold.store import load_measured, save_measured
from studies.autofold.tables import capped, judged, networks, regrets, rules, sets, table
from tests.studies.invented import invented


def both_sides(gain=0.02):
    gains = {"paired-cap50": gain, "ebo": 0.001}
    return [invented(gains, name="a"), invented(gains, role="held out", name="b")]


def test_what_was_measured_is_read_again(tmp_path):
    measured = invented({"pooled": 0.02}).measured
    save_measured(measured, tmp_path / "case.npz")
    again = load_measured(tmp_path / "case.npz")
    assert again is not None
    for field in fields(Measured):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(measured, field.name))
    assert isinstance(again.methods, list)


@pytest.mark.parametrize("content", [None, b"", b"no such thing", b"PK\x03\x04 and then nothing"])
def test_what_cannot_be_read_is_measured_again(tmp_path, content):
    if content is not None:
        (tmp_path / "case.npz").write_bytes(content)
    assert load_measured(tmp_path / "case.npz") is None


def test_a_section_takes_the_place_of_the_old_one_and_nothing_else_changes():
    text = "before\n<!-- begin a -->\nold | \\1\n<!-- end a -->\nafter"
    assert filled(text, {"a": "new \\1"}) == "before\n<!-- begin a -->\nnew \\1\n<!-- end a -->\nafter"


def test_a_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match=r"no place for 'b'\. Add the lines <!-- begin b -->"):
        filled("<!-- begin a --><!-- end a -->", {"b": "new"})


def test_the_page_has_a_place_for_every_section_and_figure():
    text = PAGE.read_text(encoding="utf8")
    filled(text, sections(both_sides()))
    assert all(f"]({name})" in text for name in FILES)


def test_the_page_gets_the_sections_and_the_files_beside_it(tmp_path):
    out, page = tmp_path / "out", tmp_path / "docs" / "autofold.md"
    for folder in (out, page.parent):
        folder.mkdir()
    for name in FILES:
        (out / name).write_text(name)
    page.write_text("".join(f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in sections(both_sides())))
    update(both_sides(), out, page)
    assert "`paired-cap50`" in page.read_text()
    assert [(page.parent / name).read_text() for name in FILES] == list(FILES)


def test_a_table_is_markdown():
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|--:|\n| 1 | 2 |"


def test_the_answer_tells_regret_energy_and_what_is_kept():
    found = both_sides()
    told = answer(found, verdicts(found))
    assert "median regret of `paired` is 1.00" in told
    assert "the largest regret is 1.00 (suite a), and 1.00 on a single set of unknown images." in told
    assert "Plain energy is ahead of AutoFold on 2 networks (suite a, suite b)" in told
    assert "`paired-cap50` was chosen on the development networks; on the held-out ones it gains +2.00" in told
    assert told.count("**kept**") == 1
    assert told.endswith("whichever was chosen on: `paired-cap50`.")


def test_the_answer_tells_the_regret_of_either_criterion():
    found = [invented({"one-vs-rest": gain}, name=f"{gain:g}", regret=0.04) for gain in (0.01, 0.02, -0.03)]
    found[1].measured.redrawn[found[1].measured.methods.index("one-vs-rest"), :, 0] -= 0.2  # on a set, not on the mean
    told = answer(found, [])
    assert "median regret of `paired` is 4.00" in told
    assert "median regret of `one-vs-rest` is 3.00" in told
    assert "the largest regret is 7.00 (suite -0.03), and 22.00 on a single set" in told


@pytest.mark.parametrize(("gain", "beaten"), [(0.02, 1), (0.005, 0)])
def test_the_answer_tells_whether_energy_is_ahead_of_every_exponent(gain, beaten):
    found = [invented({"ebo": 0.5}, name="a"), invented({"ebo": gain}, role="held out", name="b", spread=0.001)]
    low, high = (f"{100 * gain + sign * 0.1:+.2f}" for sign in (-1, 1))
    said = f"the difference is {100 * gain:+.2f} ({low} to {high}) points, and energy is ahead of FOLD at any exponent"
    assert f"On the held-out networks {said} on {beaten} of 1." in answer(found, verdicts(found))
    assert "On the held-out" not in answer(found[:1], [])


def test_the_answer_says_so_when_nothing_is_kept_or_judged():
    found = both_sides(gain=-0.02)
    told = answer(found, verdicts(found))
    assert "**kept**" not in told
    assert told.endswith("chosen on: none of these rules.")
    assert "no rule was judged" in answer(found[:1], [])


def test_rows_have_the_numbers_of_their_network_and_rule():
    lines = networks(both_sides()).splitlines()
    assert lines[2].startswith("| suite a | 80.0 | 0.50 | 0.50 | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) | 90.00 |")
    capped = next(line for line in rules(both_sides()).splitlines() if "`paired-cap50`" in line)
    assert capped == "| `paired-cap50` " + "| +2.00 (+2.00 to +2.00) | +2.00 | +2.00 " * 2 + "|"


def test_every_set_and_their_mean_has_the_regret_of_every_criterion_and_of_energy():
    one = invented({"one-vs-rest": -0.02, "shrunk": 0.01, "ebo": 0.04}, regret=0.03)
    one.measured.redrawn[one.measured.methods.index("paired"), :, 0] -= 0.05  # on the first set, not on the mean
    one.measured.redrawn[one.measured.methods.index("oracle"), :, 0] += 0.01
    one.measured.alphas[one.measured.methods.index("oracle"), 0] = 0.15, 0.2
    lines = regrets([one]).splitlines()
    assert lines[0] == "| network: unknown images | best α | paired | one-vs-rest | shrunk | ebo |"
    for line, name, best, values in zip(
        lines[2:], ("far", "mean"), ("0.15", "0.20"), ((9, 6, 3, 0), (3, 5, 2, -1)), strict=True
    ):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[:2] == [f"suite net: {name}", best]
        assert [[float(word.strip("()")) for word in cell.replace(" to", "").split()] for cell in cells[2:]] == [
            [value] * 3 for value in values
        ]


def test_sets_are_those_of_held_out_networks():
    lines = sets(both_sides(), ["shrunk"]).splitlines()
    assert lines[0] == "| network: unknown images | paired | shrunk | one-vs-rest | ebo | msp |"
    assert len(lines) == 3
    assert lines[2].startswith("| suite b: far | 80.00 (80.00 to 80.00) |")


def test_it_is_told_what_else_might_have_been_chosen():
    gains = {"mixed": 0.02, "pooled": 0.018, "likelihood": 0.3, "fixed-0.5-T2": 0.06}
    found = [invented(gains, name="a"), invented(gains, role="held out", name="b")]
    found += [invented({"likelihood": -0.1}, name="c")]
    found[0].measured.redrawn[found[0].measured.methods.index("pooled"), 3:] += 0.01  # in two of four redraws
    lines = choices(found).splitlines()
    assert "| choose the exponent alone | `mixed` | 50 % | +1.00 | chosen | +2.00 (+2.00 to +2.00) |" in lines
    assert "| choose the exponent alone | `pooled` | 50 % | +0.90 |  | +1.80 (+1.80 to +1.80) |" in lines
    assert "| set the temperature too | `fixed-0.5-T2` | 100 % | +2.50 |  | +6.00 (+6.00 to +6.00) |" in lines
    assert "| set the temperature too | `likelihood` | 0 % | +0.00 | chosen | +30.00 (+30.00 to +30.00) |" in lines
    assert choices(found[:1]) == "There were no held-out networks in this run."


def test_what_was_tried_last_has_a_star():
    starred = {line.split("`")[1] for line in rules(both_sides()).splitlines() if "` * |" in line}
    assert starred == {"shrunk-cap50", "fixed-0.5-cap50-T2", "ebo-cap50", "msp-cap50"}


def test_a_cap_is_compared_with_energy_without_it():
    lines = capped([invented({"ebo": 0.01, "ebo-cap50": 0.03}, name=name) for name in "ab"]).splitlines()
    assert lines[2] == "| suite a | 91.00 | 93.00 | +2.00 (+2.00 to +2.00) |"
    assert lines[-1] == "| *development, mean* |  |  | +2.00 (+2.00 to +2.00) |"


def test_a_verdict_is_a_row():
    line = judged(verdicts(both_sides())).splitlines()[4]
    assert line == (
        "| development → held out | cap norms too | `paired-cap50` | 100 % | +2.00 (+2.00 to +2.00) "
        "| +2.00 to +2.00 | +2.00 | yes | yes |"
    )
    assert judged([]) == "There were no held-out networks in this run."


def test_a_constant_and_energy_are_told_for_each_role():
    gains = {"fixed-0.25": 0.01, "ebo": 0.05}
    told = beside([invented(gains | {"oracle-T": best}, name=str(best)) for best in (0.04, 0.06)])
    assert told == (
        "On the development networks a constant exponent of a quarter gains +1.00 (+1.00 to +1.00) points over "
        "`paired`, and energy is ahead even of the best exponent and temperature on 1 of 2."
    )
