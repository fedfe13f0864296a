"""The table of costs: every method with time and memory, quickest first."""

import re

from flatfold.evaluate.reproduce.rows import Cost
from flatfold.report.reproduction.cost_table import cost_table
from flatfold.report.reproduction.csvs import cost_lines
from tests.toy_ablations import make_material


def cost(method, inference, peak, sees="features", setup=3.0):
    return Cost(method, sees, setup, inference, 0.9 * inference, 1.2 * inference, 11, peak, 256)


def test_methods_come_quickest_first_with_quartiles_and_memory():
    page = cost_table([cost("slow", 20.0, 53.9, "images"), cost("quick", 0.5, 0.004), cost("middle", 2.0, None)])
    assert re.findall(r"<th scope=\"row\">(\w+)", page) == ["quick", "middle", "slow"]
    assert "<b>20.0</b><small>18.0 to 24.0</small>" in page
    assert "slow<small>runs the network</small>" in page
    memory = [re.findall(r"<td.*?>(.*?)</td>", row)[-1] for row in page.split("</tr>")[1:4]]
    assert memory == ["below 1", "", "53.9"]
    assert "batch of 256" in page


def test_nothing_was_timed_and_nothing_is_shown():
    assert cost_table([]) == ""


def test_the_lines_of_its_file_are_all_costs_with_their_network():
    material = make_material("cnn")
    lines = list(cost_lines([material]))
    assert [line["method"] for line in lines] == [cost.method for cost in material.ablations.costs]
    assert {line["network"] for line in lines} == {"cnn"}
    assert {"setup_ms", "inference_ms", "peak_megabytes", "batch_size"} <= set(lines[0])
