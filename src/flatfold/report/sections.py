"""The sections of the page below its results: heading, explanation, content; none without something to show."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .markup import Html, joined, tag


class Section(NamedTuple):
    """What stands above the content of a section."""

    name: str
    heading: str
    text: str = ""


SECTIONS = (
    Section(
        "scores",
        "How the scores separate",
        "Grey: known test images. Lines: unknown ones. Further right means “less like the training data”. The "
        "outermost bars collect what lies beyond; an axis with powers of ten is logarithmic.",
    ),
    Section(
        "roc",
        "False alarms against finds",
        "Each threshold on the score finds a share of the unknown inputs and flags a share of the known ones by "
        "mistake. The axis of false alarms is logarithmic: practice happens on its left.",
    ),
    Section(
        "norms",
        "Scores and norms",
        "Features of unknown inputs tend to be shorter. A score that only measures their length would follow one line; "
        "what separates the colours at the same norm is what the method adds.",
    ),
    Section(
        "alpha",
        "How AutoFold chose α",
        "The criterion (black, with a band of two standard errors) comes from in-distribution validation data alone. "
        "The coloured lines are the AUROC that each α would really have given; AutoFold never sees them. The dotted "
        "line is its choice, the dashed curve the average over the unknown data sets. The regret is what the best α "
        "would have added to that average, in percentage points.",
    ),
    Section(
        "costs",
        "AUROC and cost",
        "Best is top left: a high average AUROC from little time per sample. The axis of AUROC is stretched towards "
        "100. Bars are 95 % intervals where they were computed. Markers grow with the time that fitting took, one step "
        "for every factor of ten. The dotted line joins the methods that none beats in both.",
    ),
    Section(
        "wrong",
        "The most wrong images",
        "Where a method is most mistaken: known images with the highest scores and, of each unknown data set, those "
        "with the lowest. The share says how many of the known test images score lower. A click on an image shows "
        "where it is.",
    ),
    Section(
        "curvature",
        "Curvature by data set",
        "The largest eigenvalue λmax and the trace of the mean curvature over the inputs of a data set. Below each its "
        "error, the standard error of a trace and a bound for λmax, or that it is exact; then the factor over the "
        "known images. Amber marks what does not exceed them.",
    ),
    Section("curvature-elsewhere", "Curvature"),
    Section(
        "curvature-traces",
        "Curvature of single inputs",
        "Traces at every input, of features as they are. Grey: known test images. Lines: unknown ones. The outermost "
        "bars collect what lies beyond, the leftmost also what is zero; an axis with powers of ten is logarithmic.",
    ),
    Section(
        "curvature-spectra",
        "Spectra",
        "How the eigenvalues of the mean curvature spread: first of the known images, then of each unknown data set in "
        "front of them. A kernel of 1 % of the largest eigenvalue makes masses a density; a band is one standard error "
        "over random probes, where there are any. Most eigenvalues are zero: that share is told, or, of an estimate, "
        "the share that lies within the kernel around zero. The axis of density ends at a tenth of the height of a "
        "single eigenvalue.",
    ),
    Section(
        "curvature-eigenvalues",
        "Largest eigenvalues of single inputs",
        "Of the curvature over features, by how much of their norm is divided out: the median over the inputs, with a "
        "band from the lower to the upper quartile. Bands that overlap are inputs that this eigenvalue cannot tell.",
    ),
    Section(
        "curvature-detection",
        "Traces as detectors",
        "AUROC, in percent, of a trace as a score, with its 95 % interval; α is the exponent by which features were "
        "normalised. Green marks the best of a column and every other whose interval reaches that of the best: no more "
        "than that is claimed. Amber marks what is certainly worse than guessing.",
    ),
    Section(
        "theorem",
        "A theorem on unknown inputs",
        "Two Gaussian classes at ±μ with covariance S, a logistic head that has learnt them, w = 2S⁻¹μ, and unknown "
        "inputs of the same covariance at ±cRμ, with a rotation R: their expected trace is the larger one if and only "
        "if c |μ′S⁻¹Rμ| < μ′S⁻¹μ. The FOLD paper states the “if”, with w = S⁻¹μ, and the order is the same "
        "for every positive multiple; but it needs the equal covariance, and unless S is a multiple of the identity, "
        "c < 1 alone is not enough.",
    ),
    Section("datasets", "Unknown data sets"),
    Section(
        "methods",
        "Methods",
        "“Fitted on” is the in-distribution data a method learnt from, “tuned on” the data on which it chose a "
        "setting; learnt values end in an underscore. Times are of this machine, with the features given; those of "
        "odin and mdsens hold the network's own passes. “Peak MB” is the memory that fitting and scoring took beyond "
        "what was in use, where the system tells.",
    ),
    Section("provenance", "Where the numbers come from"),
)


def contents(parts: Mapping[str, Html]) -> Html:
    """Return an entry of the menu for every section that has content."""
    return joined(tag("li", tag("a", told.heading, href=f"#{told.name}")) for told in _shown(parts))


def sections(parts: Mapping[str, Html], more: Mapping[str, str]) -> Html:
    """Return the sections that have content.

    Args:
        parts: Content by the name of its section; one that is missing or empty has no section.
        more: What is said of this run behind the explanation, by the name of the section.
    """
    made = []
    for told in _shown(parts):
        text = " ".join(filter(None, (told.text, more.get(told.name, ""))))
        above = [tag("h2", told.heading), *([tag("p", text)] if text else [])]
        made.append(tag("section", *above, parts[told.name], id=told.name))
    return joined(made)


def _shown(parts: Mapping[str, Html]) -> Iterable[Section]:
    return (told for told in SECTIONS if parts.get(told.name))
