"""The public page: the names a user's script may rely on, and what importing it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import flatfold as ff

NAMES = """
    Head FeatureBank save_bank load_bank create methods register tune benchmark BenchmarkResults load_results
    Detector InputDetector Shaped PartialNorm Fold AutoFold FourFold
    extract as_batches Loading Execution logits_function layers_of layers_and_head FolderImages Transform
    Guard Verdict Explanation CalibratedDetector Monitor
    auroc auroc_interval aupr fpr_at_tpr
    FlatfoldError MethodRefusedError NotFittedError UnsupportedHeadError DamagedBankError DamagedFileError
    UnreadableInputError UnreadableImageError UnreadableTextError curvature data detectors __version__
"""
CURVATURE = """
    Density Estimate Spectrum feature_eigenvalues feature_lambda_max feature_shares feature_spectrum feature_trace
    logit_eigenvalues logit_lambda_max logit_spectrum logit_trace
    param_lambda_max param_spectrum param_trace
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_pages_have_exactly_these_names():
    assert set(ff.__all__) == set(dir(ff)) == set(NAMES.split())
    assert set(ff.curvature.__all__) == set(CURVATURE.split())
    for page, names in ((ff, NAMES), (ff.curvature, CURVATURE)):
        assert [name for name in names.split() if getattr(page, name, None) is None] == []
    assert not hasattr(ff, "no_such_thing")


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(ff.__file__).read_text(encoding="utf8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed | {"__version__"} == set(NAMES.split())


def test_importing_the_package_or_asking_for_help_does_not_import_torch():
    code = "import sys, flatfold\nfrom flatfold.cli import app\n"
    assert run(code + "print({'torch', 'numpy', 'matplotlib'} & {*sys.modules})") == "set()"
