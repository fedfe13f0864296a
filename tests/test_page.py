"""The public page: the names a user's script may rely on, and what importing it costs."""

import subprocess
import sys

import flatfold as ff

NAMES = {
    # features and heads
    "Head",
    "FeatureBank",
    "save_bank",
    "load_bank",
    # detectors
    "create",
    "methods",
    "register",
    "Detector",
    "Shaped",
    "Fold",
    "AutoFold",
    "Msp",
    "Ebo",
    "Mls",
    "ReAct",
    "Ash",
    "PartialNorm",
    "Scale",
    "OpenMax",
    "TempScale",
    "Mds",
    "Rmds",
    "Vim",
    "Knn",
    "She",
    "Gen",
    "GradNorm",
    "Klm",
    "NNGuide",
    "NormCap",
    "FoldT",
    "Fdbd",
    "Nci",
    "Dice",
    "InputDetector",
    "Odin",
    "MdsEns",
    "tune",
    # models
    "logits_function",
    "layers_of",
    "extract",
    "FolderImages",
    "NpzImages",
    "ListImages",
    "TableImages",
    "Transform",
    # curvature
    "curvature",
    # decisions
    "Guard",
    "Judge",
    "Monitor",
    # metrics
    "auroc",
    "auroc_interval",
    "aupr",
    "fpr_at_tpr",
    # errors
    "NotFittedError",
    "UnsupportedHead",
    "DamagedBank",
    "UnreadableImage",
    "__version__",
}


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_page_has_exactly_these_names():
    assert set(ff.__all__) == NAMES
    assert set(dir(ff)) == NAMES


CURVATURE = {
    "Density",
    "Estimate",
    "Spectrum",
    "feature_eigenvalues",
    "feature_lambda_max",
    "feature_spectrum",
    "feature_trace",
    "layer_eigenvalues",
    "layer_trace",
    "logit_eigenvalues",
    "logit_lambda_max",
    "logit_spectrum",
    "logit_trace",
    "param_lambda_max",
    "param_spectrum",
    "param_trace",
    "theory",
}


def test_the_page_of_curvature_has_exactly_these_names():
    assert set(ff.curvature.__all__) == CURVATURE
    for name in CURVATURE:
        assert getattr(ff.curvature, name) is not None


def test_every_name_on_the_page_exists():
    for name in NAMES:
        assert getattr(ff, name) is not None


def test_type_checkers_see_the_same_names():
    import ast
    from pathlib import Path

    tree = ast.parse(Path(ff.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed | {"__version__"} == NAMES


def test_another_name_is_an_attribute_error():
    assert not hasattr(ff, "no_such_thing")


def test_importing_the_package_does_not_import_torch():
    assert run("import sys, flatfold; print('torch' in sys.modules, 'numpy' in sys.modules)") == "False False"
    assert run("import sys, flatfold; flatfold.auroc; print('torch' in sys.modules)") == "True"


def test_help_does_not_import_torch():
    code = "import sys\nfrom flatfold.cli import app\nprint('torch' in sys.modules, 'matplotlib' in sys.modules)"
    assert run(code) == "False False"
