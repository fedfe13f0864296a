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
        "error, which is the standard error of a trace and for λmax a bound on the distance to an eigenvalue, or that "
        "it is exact; then the factor over the known images. Amber marks what does not exceed them. These errors are "
        "of the computation alone: other images of the same kind would give other figures.",
    ),
    Section("curvature-elsewhere", "Curvature"),
    Section(
        "curvature-traces",
        "Curvature of single inputs",
        "Traces at every input, of features as they are. Grey: known test images. Lines: unknown ones. All data sets "
        "are drawn equally high: compare where they lie, not how high they reach. The outermost bars collect what lies "
        "beyond, the leftmost also what is zero; an axis with powers of ten is logarithmic. Behind the name is the "
        "typical error of a trace, or that all are exact.",
    ),
    Section(
        "curvature-spectra",
        "Spectra",
        "How the eigenvalues of the mean curvature spread: first of the known images, then of each unknown data set in "
        "front of them. A Gaussian kernel turns them into a density; its width is 1 % of the largest eigenvalue of "
        "each. Behind the name is the share of eigenvalues that are zero or, of an estimate, that lie within this "
        "width of zero. An estimate comes from a few Lanczos steps along random probes: its peaks are points of a "
        "quadrature and, except at the ends, no single eigenvalues; a band, where probes differ, is one standard error "
        "over them. The axis of density is logarithmic and starts at a tenth of the height of a single eigenvalue.",
    ),
    Section(
        "curvature-eigenvalues",
        "Largest eigenvalues of single inputs",
        "Of the curvature over features, by how much of their norm is divided out: the median over the inputs, with a "
        "band from the lower to the upper quartile. Where bands overlap, this eigenvalue hardly tells inputs apart.",
    ),
    Section(
        "curvature-detection",
        "Traces as detectors",
        "AUROC, in percent, of a trace as a score, with its 95 % interval; α is the exponent by which features were "
        "normalised, and 0 leaves them as they are. Green marks the best of a column and every other whose interval "
        "reaches that of the best: no more than that is claimed. Amber marks what is certainly worse than guessing.",
    ),
    Section(
        "theorem",
        "A theorem on unknown inputs",
        "Of random settings, the same on every page, not of this suite. Two Gaussian classes at ±μ with covariance S, "
        "a logistic head that has learnt them, w = 2S⁻¹μ, and unknown inputs of the same covariance at ±cRμ, with a "
        "rotation R: their expected trace of the Hessian of the energy is the larger one if and only if c |μ′S⁻¹Rμ| "
        "< μ′S⁻¹μ. The FOLD paper states the “if”, with w = S⁻¹μ, and the order is the same for every positive "
        "multiple; but it needs the equal covariance, and unless S is a multiple of the identity, c < 1 alone is not "
        "enough. First panel: every dot is a setting, and none may lie where the theorem says never. Second: this "
        "trace is |w|² φ with φ = p (1 − p), and the proof needs that the average of φ over a Gaussian falls as its "
        "mean m leaves zero, not only φ itself. Third: expected traces of some settings against random draws, with two "
        "standard errors.",
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
