"""What is shown of each table and figure of the paper: markup for the page, drawings and lines for files."""

from collections.abc import Sequence
from dataclasses import replace

from ...evaluate.reproduce.verdict import Material
from ...evaluate.study.files import Space
from ...evaluate.summary import family_of
from ..costs import TALL
from ..curvature.compare import compare
from ..curvature.detection import detection_table
from ..curvature.eigenvalues import top_eigenvalues
from ..curvature.spectra import spectral_densities
from ..curvature.table import statistics_table
from ..curvature.traces import trace_densities
from ..markup import Html, joined, tag
from ..panels import side_by_side
from ..theorem import theorem_figure
from . import csvs
from .bars import cost_bars
from .cost_table import cost_table
from .effects import effects_table
from .pieces import price, typical_spectra, typical_traces
from .scatter import norm_scatter
from .sensitivity import alpha_sensitivity
from .shift import trace_by_regime
from .shown import Show, Shown, drawn, named, per_network
from .tables import methods_table, network_table, regime_table

RATES = (
    "AUROC in bold and FPR95 behind it, in percent, unknown inputs as the positive class. Green marks the best AUROC "
    "of a column and every other that a paired test cannot tell from it."
)
GAINS = (
    "Averages of AUROC in bold and FPR95 behind it, in percent; below them the gain in AUROC over no normalisation, in "
    "points, with its paired 95 % interval. Green marks gains whose interval lies above 0, amber losses."
)
COMPUTED = "Errors in this table are of the computation alone; the checks count the images that were drawn, too."
STUDIED = "AUROC in percent on the images of the curvature study, which are fewer than those of the check above."


def _pitch(materials: Sequence[Material], stem: str) -> Shown:
    trend = trace_by_regime(materials, f"{stem}a")
    wide = {each.network: price(each, named(f"{stem}b", each.network)) for each in materials}
    tall = {each.network: price(each, named(f"{stem}b-tall", each.network), TALL) for each in materials}
    both = per_network(
        materials,
        lambda each: joined(
            tag("div", side_by_side(drawing[each.network], class_="panels one"), class_=kind)
            for drawing, kind in ((wide, "wide"), (tall, "tall"))
        ),
    )
    parts = [tag("h3", "(a) Sharpness"), side_by_side(trend), tag("h3", "(b) AUROC and cost"), both]
    return Shown(joined(parts), [trend, *wide.values()])


def _below(text: str, content: Html) -> Html:
    return joined([tag("p", text), content])


def _regimes(space: Space) -> Show:
    return lambda materials, stem: Shown(
        regime_table(materials, space), lines=list(csvs.regime_lines(materials, space))
    )


def _averages(materials: Sequence[Material], stem: str) -> Shown:
    shown = per_network(materials, lambda each: methods_table(each.results, each.results.groups, "Averages"))
    return Shown(_below(RATES, shown), lines=list(csvs.average_lines(materials)))


def _networks(materials: Sequence[Material], stem: str) -> Shown:
    if len({family_of(material.results) for material in materials}) == 1:
        return Shown(Html())
    means = [line for line in csvs.average_lines(materials) if line["over"] == "all"]
    return Shown(_below(RATES, network_table(materials)), lines=means)


def _rows(materials: Sequence[Material], stem: str) -> Shown:
    shown = per_network(materials, lambda each: methods_table(each.results, each.results.columns, "Every data set"))
    return Shown(_below(RATES, shown), lines=list(csvs.row_lines(materials)))


def _effects(materials: Sequence[Material], stem: str) -> Shown:
    shown = per_network(materials, lambda each: effects_table(each.ablations))
    return Shown(_below(GAINS, shown), lines=list(csvs.effect_lines(materials)))


def _detections(materials: Sequence[Material], stem: str) -> Shown:
    def show(each: Material) -> Html:
        two = [told for told in each.study.detections if told.space != "parameter"]
        return detection_table(replace(each.study, detections=two))

    return Shown(_below(STUDIED, per_network(materials, show)), lines=list(csvs.detection_lines(materials)))


def _datasets(materials: Sequence[Material], stem: str) -> Shown:
    def show(each: Material) -> Html:
        study = replace(each.study, statistics=[told for told in each.study.statistics if told.space != "logit"])
        return statistics_table(study, compare(study))

    return Shown(_below(COMPUTED, per_network(materials, show)), lines=list(csvs.dataset_lines(materials)))


def _costs(materials: Sequence[Material], stem: str) -> Shown:
    bars = {each.network: cost_bars(each.ablations.costs, named(stem, each.network)) for each in materials}
    shown = per_network(
        materials, lambda each: joined([side_by_side(bars[each.network]), cost_table(each.ablations.costs)])
    )
    return Shown(shown, [*bars.values()], list(csvs.cost_lines(materials)))


def _theorem(materials: Sequence[Material], stem: str) -> Shown:
    drawing = replace(theorem_figure(), name=stem)
    return Shown(side_by_side(drawing), [drawing])


SHOWS: dict[str, Show] = {
    "Figure 1": _pitch,
    "Table 1": _regimes("parameter"),
    "Figure 2": drawn(lambda each, name: typical_traces(each.study, name)),
    "Table 2": _averages,
    "Figure 3": _costs,
    "Figure 4": drawn(lambda each, name: alpha_sensitivity(each.ablations.sensitivities, name)),
    "Table 3": _effects,
    "Figure 5": drawn(lambda each, name: norm_scatter(each.ablations, each.study.datasets[1:], name)),
    "Figure 6": drawn(lambda each, name: replace(top_eigenvalues(each.study), name=name)),
    "Table 4": _detections,
    "Figure 7": drawn(lambda each, name: typical_spectra(each.study, name)),
    "Table 5": _networks,
    "Theorem 1": _theorem,
    "Table 6": _regimes("feature"),
    "Table 7": _datasets,
    "Figures 8 and 10": drawn(lambda each, name: replace(spectral_densities(each.study, "parameter"), name=name)),
    "Figures 9 and 11": drawn(lambda each, name: replace(spectral_densities(each.study, "feature"), name=name)),
    "Figures 12 to 15": drawn(lambda each, name: replace(trace_densities(each.study), name=name)),
    "Tables 8 to 11": _rows,
}
