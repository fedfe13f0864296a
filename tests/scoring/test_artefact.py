"""Guards on disk: what is written comes back bit for bit, and anything else gives a sentence."""

import json
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import flatfold as ff
from flatfold.core.conformal import allowed_ranks
from flatfold.detectors.registry import METHODS
from flatfold.models.identity import weights_hash
from flatfold.scoring import artefact
from flatfold.scoring.artefact import probes
from flatfold.scoring.artefact.settings import head_hash, head_within
from flatfold.scoring.artefact.strict_json import canonical, parsed
from flatfold.scoring.artefact.tensor_file import checksum
from tests.four_classes import known, make_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:AutoFold's curve is flat"),
    pytest.mark.filterwarnings("ignore:every sample of this bank is classified correctly"),
]

SEE_FEATURES = sorted(name for name, method in METHODS.items() if method.sees == "features")
SMALL = {"knn": {"k": 5}, "nnguide": {"k": 5, "share": 0.3}}


def fitted(name, model, n=400, **how):
    return ff.Guard.fit(model, [known(n)], detector=ff.create(name, **SMALL.get(name, {})), fpr=0.1, **how)


def check_same(guard, loaded):
    x = torch.cat([known(30, seed=5)[0], torch.rand(30, 8), torch.zeros(1, 8), 50 * torch.rand(3, 8)])
    for before, after in zip(guard(x), loaded(x), strict=True):
        assert before.dtype == after.dtype
        assert torch.equal(before, after)


def settings_in(path):
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["guard"])


def forge(path, settings=None, drop=(), **tensors):
    """Change a file and everything that proves it unchanged, but not its self-test."""
    said = {key: value for key, value in {**settings_in(path), **(settings or {})}.items() if key != "sha256"}
    parts = {key: value for key, value in {**load_file(path), **tensors}.items() if key not in drop}
    said = {key: value for key, value in said.items() if key not in drop}
    said["sha256"] = checksum(canonical(said), parts)
    save_file(parts, path, {"guard": canonical(said)})


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def guard(model):
    return fitted("autofold", model, 200)


@pytest.fixture
def path(guard, tmp_path):
    guard.save(tmp_path / "guard.safetensors")
    return tmp_path / "guard.safetensors"


@pytest.fixture
def check_refused(path, model):
    def check(message, other=None):
        with pytest.raises(ValueError, match=message) as error:
            ff.Guard.load(path, model if other is None else other)
        assert str(path) in str(error.value)
        assert len(str(error.value)) < 300 + len(str(path)) + 60
        assert str(error.value).endswith(".")

    return check


class TestRoundTrip:
    @pytest.mark.filterwarnings("ignore:.*correctly classified")
    @pytest.mark.parametrize("per_class", [False, True])
    @pytest.mark.parametrize("name", SEE_FEATURES)
    def test_every_method_says_the_same_bit_for_bit(self, name, per_class, model, tmp_path):
        guard = fitted(name, model, per_class=per_class)
        guard.save(tmp_path / "guard.safetensors")
        loaded = ff.Guard.load(tmp_path / "guard.safetensors", make_model())
        check_same(guard, loaded)
        assert repr(loaded) == repr(guard)
        assert torch.equal(loaded.calibration.threshold, guard.calibration.threshold)

    @pytest.mark.parametrize(
        ("name", "hyper"),
        [
            ("mls", {"alpha": 0.7}),
            ("knn", {"k": 3, "storage": "float16"}),
            ("fold-r", {"masked": True, "percentile": 85}),
            ("autofold-a", {"percentile": (70, 80), "grid": (0.1, 0.5)}),
        ],
    )
    def test_hyper_parameters_travel_with_the_file(self, name, hyper, model, tmp_path):
        guard = ff.Guard.fit(model, [known(200)], detector=ff.create(name, **hyper))
        guard.save(tmp_path / "guard.safetensors")
        loaded = ff.Guard.load(tmp_path / "guard.safetensors", model)
        check_same(guard, loaded)
        assert canonical(loaded.detector.made_by) == canonical(guard.detector.made_by)
        assert hyper.items() <= guard.detector.made_by[1].items()

    def test_another_rate_travels_too(self, guard, model, tmp_path):
        guard.at(0.3).save(tmp_path / "guard.safetensors")
        loaded = ff.Guard.load(tmp_path / "guard.safetensors", model)
        assert loaded.fpr == 0.3
        check_same(guard.at(0.3), loaded)
        check_same(guard, loaded.at(0.1))

    def test_the_transform_is_kept(self, model, tmp_path):
        transform = ff.Transform(resize=9, crop=8, mean=(0.1, 0.2, 0.3), std=(1, 2, 3), interpolation="bicubic")
        fitted("fold", model, transform=transform).save(tmp_path / "guard.safetensors")
        assert ff.Guard.load(tmp_path / "guard.safetensors", model).transform == transform

    def test_a_model_in_float64_and_without_a_bias(self, tmp_path):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4, bias=False)).double()
        x, y = known(200)
        guard = ff.Guard.fit(model, [(x.double(), y)], detector="vim", fpr=0.1)
        guard.save(tmp_path / "guard.safetensors")
        loaded = ff.Guard.load(tmp_path / "guard.safetensors", model)
        assert torch.equal(loaded(x.double()).score, guard(x.double()).score)
        assert loaded(x.double()).score.dtype == torch.float64

    def test_the_same_guard_gives_the_same_bytes(self, model, tmp_path):
        for name in ("a", "b"):
            fitted("autofold-r", model).save(tmp_path / name)
        ff.Guard.load(tmp_path / "a", model).save(tmp_path / "c")
        assert len({(tmp_path / name).read_bytes() for name in "abc"}) == 1

    def test_features_are_judged_without_the_model(self, guard, path):
        judge, transform, settings = artefact.load_judge(path)
        assert transform is None
        assert settings == {key: value for key, value in settings_in(path).items() if key != "sha256"}
        features = torch.rand(20, 16)
        for read in (judge, ff.Judge.load(str(path))):
            for one, other in zip(read(features), guard.judge(features), strict=True):
                assert torch.equal(one, other)

    def test_a_file_is_read_under_autocast(self, guard, path, model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loaded = ff.Guard.load(path, model)
        check_same(guard, loaded)

    def test_a_link_to_a_file_is_followed(self, guard, path, model):
        (path.parent / "link").symlink_to(path)
        check_same(guard, ff.Guard.load(path.parent / "link", model))

    @pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
    def test_a_compiled_model_is_the_same_model(self, guard, path, model):
        assert ff.Guard.load(path, torch.compile(model)).found.name == "3"
        check_same(guard, ff.Guard.load(path, deepcopy(model)))


class TestContent:
    @pytest.mark.parametrize("per_class", [False, True])
    def test_settings_tell_people_what_the_tensors_hold(self, per_class, model, tmp_path):
        guard = fitted("fold", model, per_class=per_class)
        guard.save(tmp_path / "guard.safetensors")
        said = settings_in(tmp_path / "guard.safetensors")
        rows = [row[row.isfinite()].double() for row in guard.calibration.scores]
        every = torch.cat(rows).sort().values
        assert said["thresholds"] == [float(row[len(row) - allowed_ranks(0.1, len(row))]) for row in rows]
        assert said["calibration"]["samples"] == 200
        assert said["calibration"]["least"] == min(map(len, rows))
        assert said["calibration"]["most"] == max(map(len, rows))
        for percent, value in said["calibration"]["quantiles"].items():
            assert value == float(torch.quantile(every, int(percent) / 100, interpolation="lower"))
        assert list(said["calibration"]["quantiles"]) == sorted(map(str, (0, 5, 25, 50, 75, 95, 100)))
        assert (said["detector"], said["hyper"]) == ("fold", {"alpha": 0.5, "score_norm": None})
        assert (said["format"], said["version"], said["flatfold"]) == ("flatfold-guard", 2, ff.__version__)
        assert (said["fpr"], said["per_class"], said["head"], said["gives_logits"]) == (0.1, per_class, "3", True)
        assert (said["classes"], said["features"], said["dtype"], said["transform"]) == (4, 16, "float32", None)
        assert said["weights_sha256"] == weights_hash(model)
        assert said["head_sha256"] == head_hash(ff.Head(model[3].weight, model[3].bias))

    def test_the_safetensors_library_reads_it(self, guard, path):
        tensors = load_file(path)
        learnt = {f"detector.{name}": value for name, value in guard.detector.state_dict().items()}
        others = {"calibration.scores", "calibration.counts", "probe.features", "probe.scores"}
        assert set(tensors) == set(learnt) | others
        assert all(torch.equal(tensors[name], value) for name, value in learnt.items())
        assert tensors["probe.features"].shape == (8, 16)
        assert torch.equal(tensors["probe.scores"], guard.detector(tensors["probe.features"]))

    def test_a_file_written_by_that_library_is_read(self, guard, path, model):
        forge(path)
        check_same(guard, ff.Guard.load(path, model))

    def test_head_hashes_differ_by_value_type_shape_and_bias(self):
        weight = torch.arange(8.0).reshape(2, 4)
        heads = [
            ff.Head(weight),
            ff.Head(weight + 1e-7),
            ff.Head(weight.double()),
            ff.Head(weight.reshape(4, 2)),
            ff.Head(weight, torch.zeros(2)),
            ff.Head(weight, torch.ones(2)),
        ]
        assert len({head_hash(head) for head in heads}) == 6
        assert head_hash(ff.Head(weight.mT.contiguous().mT)) == head_hash(heads[0])


class TestProbes:
    """The self-test sees every tensor that a score depends on."""

    UNSEEN = ("grid_", "curve_", "curve_stderr_", "percentiles_", "maxima_", "dim_")  # they tell, and score nothing

    def judge(self, name, world):
        from flatfold.scoring.calibration import Calibration
        from flatfold.scoring.judge import Judge

        detector = ff.create(name, **SMALL.get(name, {})).fit(world.bank, world.head)
        return Judge(detector, Calibration.of(detector(world.bank.features), 0.1))

    @pytest.mark.parametrize("name", SEE_FEATURES)
    def test_a_change_of_any_part_is_seen(self, name, make_world):
        judge = self.judge(name, make_world())
        features, scores = probes.make_probes(judge, head_within(judge))
        probes.check_probes(judge, features, scores)
        for key, value in judge.detector.state_dict().items():
            if key.rpartition(".")[2] in self.UNSEEN:
                continue
            other = deepcopy(judge)
            moved = value * 0.95 + 0.01 * value.abs().max().clamp_min(0.1)
            other.detector.load_state_dict({**other.detector.state_dict(), key: moved})
            if key.rpartition(".")[2] in ("weight", "bias"):
                assert head_hash(head_within(other)) != head_hash(head_within(judge))
            elif key != "percentile_" or name == "autofold-a":  # of ReAct's percentile only the threshold counts
                with pytest.raises(ValueError, match=r"gives a score of .* where it gave .* when the file was written"):
                    probes.check_probes(other, features, scores)

    @pytest.mark.parametrize("name", SEE_FEATURES)
    def test_float32_is_told_from_another_guard_with_room_to_spare(self, name, make_world):
        judge = self.judge(name, make_world())
        features, scores = probes.make_probes(judge, head_within(judge))
        exact = deepcopy(judge).double()(features.double())[0]
        scale = torch.maximum(scores.abs(), scores.abs().max() / 10)
        assert ((exact - scores).abs() / scale).max() < probes.TOLERANCE / 4

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_probes_are_made_of_the_head_alone(self, dtype, make_world):
        world = make_world(dtype)
        rows = probes.candidates(world.head)
        assert (rows > 0).all()
        assert rows.dtype == dtype
        assert all(len(row.unique()) == len(row) for row in rows)
        logits = rows @ world.head.weight.mT
        spans = logits.amax(dim=-1) - logits.amin(dim=-1)
        assert spans.min().item() == pytest.approx(1, rel=1e-4)
        assert spans.max().item() == pytest.approx(40, rel=1e-4)
        assert torch.equal(probes.candidates(ff.Head(world.head.weight)), rows)
        features, _ = probes.make_probes(self.judge("ash", world), world.head)
        assert all((rows == row).all(dim=1).any() for row in features)
        assert len(features.unique(dim=0)) == 8

    def test_a_head_of_zeros_has_probes(self):
        assert probes.candidates(ff.Head(torch.zeros(3, 5))).isfinite().all()

    def test_a_score_of_no_number_is_no_match(self, make_world):
        judge = self.judge("ebo", make_world())
        features, scores = probes.make_probes(judge, head_within(judge))
        judge.detector.bias[0] = torch.nan
        with pytest.raises(ValueError, match="gives a score of nan where"):
            probes.check_probes(judge, features, scores)

    def test_scores_that_jump_are_no_probes(self, make_world):
        class Jumps(nn.Module):
            def forward(self, h):
                return ((h.sum(dim=-1) * 1e9) % 2,)

        with pytest.raises(
            ValueError, match=r"takes 8 rows of features with a steady, finite score, but .* has [0-7] am"
        ):
            probes.make_probes(Jumps(), make_world(torch.float64).head)

    def test_scores_without_a_number_are_no_probes(self, make_world):
        with pytest.raises(ValueError, match=r"this detector has 0 among 96 that were tried. Look at"):
            probes.make_probes(lambda h: (h.sum(dim=-1) * torch.nan,), make_world().head)


class TestSaving:
    def test_a_detector_built_by_hand_has_no_name(self, model, tmp_path):
        guard = ff.Guard.fit(model, [known(100)], detector=ff.Fold(alpha=0.2))
        with pytest.raises(ValueError, match=r"this Fold was built by hand. Make it with create"):
            guard.save(tmp_path / "guard.safetensors")

    def test_a_folder_is_no_file(self, guard, tmp_path):
        with pytest.raises(
            IsADirectoryError, match=r"a guard is one file, but .* is a folder. Try .*guard.safetensors"
        ):
            guard.save(tmp_path)

    def test_the_folder_is_made(self, guard, model, tmp_path):
        guard.save(tmp_path / "a" / "b" / "guard.safetensors")
        check_same(guard, ff.Guard.load(tmp_path / "a" / "b" / "guard.safetensors", model))

    def test_a_model_that_was_trained_on_needs_a_new_guard(self, guard, model, tmp_path):
        with torch.no_grad():
            model[3].bias += 0.1
        with pytest.raises(ValueError, match=r"those of its model have changed since. .* Fit the guard again"):
            guard.save(tmp_path / "guard.safetensors")

    def test_a_weight_that_changes_when_it_is_looked_at_is_not_looked_at_in_training(self, tmp_path):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.utils.parametrizations.spectral_norm(nn.Linear(16, 4)))
        guard = fitted("fold", model.train())
        before = deepcopy(model.state_dict())
        guard.save(tmp_path / "guard.safetensors")
        check_same(guard, ff.Guard.load(tmp_path / "guard.safetensors", model))
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name

    def test_a_rate_in_numpys_float32_is_the_same_rate_when_it_is_read(self, model, tmp_path):
        rate = np.float32(0.29)  # times 100 it is 29 in float32, and a little less than that in float64
        guard = ff.Guard.fit(model, [known(10)], "fold", rate, calibration=[known(99)])
        guard.save(tmp_path / "guard.safetensors")
        loaded = ff.Guard.load(tmp_path / "guard.safetensors", model)
        check_same(guard, loaded)
        assert type(guard.fpr) is float
        assert loaded.fpr == guard.fpr == float(rate)

    @pytest.mark.parametrize(
        "value", [object(), torch.ones(2), float("nan"), {1: {2}}], ids=["object", "tensor", "nan", "set"]
    )
    def test_hyper_parameters_must_have_a_form_in_json(self, value, guard, tmp_path):
        guard.detector.made_by = ("autofold", {"grid": value})
        with pytest.raises(
            ValueError, match=r"hyper-parameters that are finite numbers, words, .* but autofold has oth"
        ):
            guard.save(tmp_path / "guard.safetensors")

    def test_tensors_must_have_a_type_that_is_read(self, guard, tmp_path):
        guard.detector.register_buffer("odd", torch.zeros(3, dtype=torch.int16))
        with pytest.raises(ValueError, match=r"a file holds tensors of the types .*, but detector.odd is torch.int16"):
            guard.save(tmp_path / "guard.safetensors")

    def test_scores_that_are_no_numbers_are_not_written(self, guard, tmp_path):
        guard.calibration.scores[0, -1] = torch.inf
        with pytest.raises(ValueError, match="this guard cannot be saved: its calibration scores must be finite"):
            guard.save(tmp_path / "guard.safetensors")

    def test_a_save_that_is_killed_leaves_the_old_file(self, guard, path, model):
        before = path.read_bytes()
        program = (
            "import os, signal, sys, torch\nfrom pathlib import Path\n"
            "from flatfold.scoring.artefact import tensor_file\n"
            "def half(tensors, file, metadata):\n"
            "    Path(file).write_bytes(bytes(1000))\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "tensor_file.save_file = half\n"
            "tensor_file.write(Path(sys.argv[1]), '{}', {'a': torch.zeros(100_000)})\n"
        )
        done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
        assert done.returncode == -9
        assert path.read_bytes() == before
        check_same(guard, ff.Guard.load(path, model))


class TestOtherModels:
    @pytest.mark.parametrize("layer", [0, 3])
    def test_other_weights(self, check_refused, layer):
        other = make_model()
        with torch.no_grad():
            other[layer].bias += 1
        check_refused("was made for a model with other weights: its calibration means nothing here. Load", other)

    def test_another_architecture(self, check_refused):
        check_refused("a last layer '3', this one has none", nn.Linear(8, 4))

    def test_a_layer_of_that_name_that_is_not_linear(self, check_refused):
        check_refused("a last layer '3', this one has none", nn.Sequential(*[nn.ReLU() for _ in range(4)]))

    def test_other_classes(self, check_refused):
        other = make_model()
        other[3] = nn.Linear(16, 7)
        check_refused("with 4 classes and 16 features, this one has 7 and 16", other)

    @pytest.mark.parametrize(("convert", "name"), [("half", "float16"), ("double", "float64")])
    def test_another_type(self, check_refused, convert, name):
        check_refused(f"was made for a model in 'float32', this one is in '{name}'", getattr(make_model(), convert)())


class TestDamage:
    """A file from elsewhere gives a sentence, never a wrong answer."""

    def test_there_is_none(self, tmp_path, model):
        with pytest.raises(FileNotFoundError, match=r"there is no guard at .*nothing. Check the path"):
            ff.Guard.load(tmp_path / "nothing", model)

    @pytest.mark.parametrize("load", [ff.Guard.load, lambda path, model: artefact.load_judge(path)])
    @pytest.mark.parametrize("name", ["folder", "pipe", "device", "link"])
    def test_what_is_not_a_file_is_refused_without_waiting_for_it(self, name, load, tmp_path, model):
        path = Path("/dev/zero") if name == "device" else tmp_path / name
        if name == "folder":
            path.mkdir()
        elif name == "pipe":
            os.mkfifo(path)
        elif name == "link":
            path.symlink_to("/dev/zero")
        with pytest.raises(ValueError, match=r"it is a folder or a device, and no regular file. Check the path"):
            load(path, model)

    def test_a_circle_of_links(self, tmp_path, model):
        (tmp_path / "a").symlink_to(tmp_path / "a")
        with pytest.raises(ValueError, match=r"cannot be used as a guard: .*[Ss]ymbolic links"):
            ff.Guard.load(tmp_path / "a", model)

    @pytest.mark.parametrize("size", [0, 7, 100, 1000])
    def test_cut_short(self, path, check_refused, size):
        path.write_bytes(path.read_bytes()[:size])
        check_refused("it is cut, damaged, or no safetensors file")

    def test_cut_among_the_tensors(self, path, check_refused):
        path.write_bytes(path.read_bytes()[:-1])
        check_refused("it is cut, damaged, or no safetensors file")

    def test_every_byte_of_the_tensors_counts(self, path, model):
        content = bytearray(path.read_bytes())
        start = 8 + int.from_bytes(content[:8], "little")
        for place in range(start, len(content), 37):
            content[place] ^= 1
            path.write_bytes(content)
            with pytest.raises(ValueError, match="its checksum is not that of its content"):
                ff.Guard.load(path, model)
            content[place] ^= 1

    def test_another_safetensors_file(self, path, check_refused):
        save_file({"x": torch.zeros(1)}, path)
        check_refused("it holds no guard, but something else")

    @pytest.mark.parametrize(
        ("version", "advice"),
        [(1, "guards of that version are read no more"), (3, "upgrade flatfold"), ("2", "guards of that version")],
    )
    def test_another_version(self, path, check_refused, version, advice):
        forge(path, {"version": version})
        check_refused(f"it has version '?{version}'?, this flatfold reads version 2: {advice}")

    def test_the_first_version(self, path, check_refused):
        said = {"format": "flatfold-guard", "version": 1, "detector": "fold", "hyper": {}, "fpr": 0.1, "head": "3"}
        save_file({"calibration": torch.arange(9.0)}, path, {"guard": json.dumps(said)})
        check_refused("it has version 1, this flatfold reads version 2")

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"detector": 3}, "the setting detector must be str, got int"),
            ({"detector": "nonsense"}, "its method is 'nonsense', and no method that sees features has this name here"),
            ({"detector": "odin"}, "its method is 'odin', and no method that sees features"),
            ({"detector": "x" * 10**6}, "its method is 'xxx"),
            ({"detector": "ebo"}, "ebo has no hyper-parameter"),
            ({"hyper": {"depth": 2}}, "autofold has no hyper-parameter depth"),
            ({"hyper": {}}, "its hyper-parameters are not all that autofold has"),
            ({"hyper": {"preset": "authors"}}, "names that no method can have"),
            ({"hyper": {"name": "fold"}}, "names that no method can have"),
            ({"hyper": None}, "the setting hyper must be dict, got NoneType"),
            ({"fpr": "much"}, "the setting fpr must be float, got str"),
            ({"fpr": 7.0}, "fpr must lie between 0 and 1"),
            ({"fpr": 0.005}, "takes 199 calibration samples"),
            ({"fpr": 5e-324}, "cannot be used as a guard"),
            ({"fpr": 0.2}, "the setting thresholds does not follow from its tensors"),
            ({"head": []}, "the setting head must be str, got list"),
            ({"gives_logits": 1}, "the setting gives_logits must be bool, got int"),
            ({"thresholds": [0.0]}, "the setting thresholds does not follow"),
            ({"per_class": True}, "the setting per_class does not follow"),
            ({"calibration": {}}, "the setting calibration does not follow"),
            ({"head_sha256": "0"}, "other weights"),
            ({"extra": 1}, "the setting 'extra' is unknown"),
            ({"transform": ff.Transform(crop=2**16 + 1).as_dict()}, "its transform is none that a guard can have"),
            ({"transform": {"resize": 2}}, "its transform is none that a guard can have"),
            ({"transform": {"evil": 2}}, "unexpected keyword argument 'evil'"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_nonsense_in_the_settings(self, path, check_refused, settings, message):
        forge(path, settings)
        check_refused(message)

    @pytest.mark.parametrize("name", ["fpr", "hyper", "transform", "weights_sha256"])
    def test_settings_must_all_be_there(self, path, check_refused, name):
        forge(path, drop=[name])
        check_refused(f"the setting '{name}' is missing")

    def test_settings_must_be_written_as_flatfold_does(self, path, check_refused):
        said = settings_in(path)
        save_file(load_file(path), path, {"guard": json.dumps(said, indent=1)})
        check_refused("its settings are not written the way flatfold writes them")

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("calibration.scores", torch.arange(100.0)[None].flip(1), "scores are not in order"),
            ("calibration.scores", torch.full((1, 100), torch.nan), "must be finite numbers, as many as are counted"),
            ("calibration.scores", torch.full((1, 100), torch.inf), "must be finite numbers, as many as are counted"),
            ("calibration.scores", torch.zeros(100), "a row of scores and a count for each group"),
            ("calibration.scores", torch.zeros(1, 0), "counts must go from 1 to the length of the longest row"),
            ("calibration.scores", torch.zeros(1, 101), "counts must go from 1 to the length of the longest row"),
            ("calibration.scores", torch.zeros(1, 100, dtype=torch.int64), "one type, float32 or float64"),
            ("calibration.scores", torch.zeros(1, 100), "the setting thresholds does not follow"),
            ("calibration.counts", torch.tensor([10**12]), "counts must go from 1 to the length of the longest row"),
            ("calibration.counts", torch.tensor([0]), "counts must go from 1 to the length of the longest row"),
            ("calibration.counts", torch.tensor([100.0]), "a row of scores and a count for each group"),
            ("detector.fold.weight", torch.ones(4, 16), "the setting head_sha256 does not follow"),
            ("detector.fold.weight", torch.ones(4, 17), "cannot be used as a guard"),
            ("detector.fold.distances", torch.full((4, 4), torch.inf), "its detector gives a score of (inf|nan) where"),
            ("detector.fold.distances", torch.ones(4, 4), "its detector gives a score of"),
            ("detector.fold.distances", torch.ones(5), "cannot be used as a guard"),
            ("detector.alpha_", torch.tensor(0.123), "its detector gives a score of"),
            ("detector.fold.score", torch.ones(4), "cannot be used as a guard"),
            ("detector.", torch.ones(4), "cannot be used as a guard"),
            ("probe.scores", torch.zeros(8), "its detector gives a score of"),
            ("probe.scores", torch.zeros(7), "its self-test must have 8 rows of 16 features"),
            ("probe.features", torch.zeros(8, 15), "its self-test must have 8 rows of 16 features"),
            ("other.values", torch.zeros(8, 15), "the tensor 'other.values' is unknown"),
        ],
    )
    def test_tensors_that_save_would_not_write(self, path, check_refused, name, value, message):
        forge(path, **{name: value})
        check_refused(message)

    def test_groups_are_one_or_as_many_as_classes(self, path, check_refused):
        forge(path, **{"calibration.scores": torch.zeros(2, 100), "calibration.counts": torch.tensor([100, 100])})
        check_refused("calibration scores of 2 groups, and a model with 4 classes has 1 or 4")

    @pytest.mark.parametrize("name", ["calibration.counts", "probe.features"])
    def test_tensors_must_all_be_there(self, path, check_refused, name):
        forge(path, drop=[name])
        check_refused(f"the tensor '{name}' is missing")

    def test_a_detector_without_its_tensors(self, path, check_refused):
        forge(path, drop=[name for name in load_file(path) if name.startswith("detector.")])
        check_refused("has not been fitted")

    def test_a_method_of_ones_own_must_be_registered_first(self, model, tmp_path):
        class Norm(ff.Detector):
            def score(self, h):
                return -h.norm(dim=-1)

        ff.register("norm-of-my-own")(Norm)
        try:
            guard = fitted("norm-of-my-own", model)
            guard.save(tmp_path / "guard.safetensors")
            check_same(guard, ff.Guard.load(tmp_path / "guard.safetensors", model))
        finally:
            del METHODS["norm-of-my-own"]
        with pytest.raises(
            ValueError, match=r"its method is 'norm-of-my-own', and no .* register it before the guard is"
        ):
            ff.Guard.load(tmp_path / "guard.safetensors", model)

    def test_a_method_that_computes_otherwise_is_found_out(self, path, check_refused, monkeypatch):
        before = ff.Fold.score_at
        monkeypatch.setattr(ff.Fold, "score_at", lambda *given: before(*given) * 1.0001)
        check_refused("its detector gives a score of .* where it gave")


class TestHeaders:
    """What a header may say, and what is refused before memory is set aside."""

    def put(self, path, header, data=b""):
        front = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(len(front).to_bytes(8, "little") + front + data)

    @pytest.mark.parametrize(
        "entry",
        [
            {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 8]},
            {"dtype": "F32", "shape": [2], "data_offsets": [0, 10**15]},
            {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
            {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
            {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]},
            {"dtype": "F32", "shape": [2], "data_offsets": [0]},
            {"dtype": [], "shape": [8], "data_offsets": [0, 8]},
            {"dtype": "F32", "shape": [2]},
            [],
        ],
        ids=str,
    )
    def test_places_that_cannot_be(self, path, check_refused, entry):
        self.put(path, {"__metadata__": {"guard": "{}"}, "x": entry}, bytes(8))
        check_refused("it is cut, damaged, or no safetensors file")

    def test_types_that_save_would_not_write(self, path, check_refused):
        self.put(path, {"x": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}, bytes(8))
        check_refused("'x' has none of the types torch.float16, .*, torch.bool")

    @pytest.mark.parametrize(
        ("header", "message"),
        [
            (b"[" * 5000, "no safetensors file"),
            (b"9" * 10**6, "no safetensors file"),
            (b"[1e999]", "no safetensors file"),
            (b"\xff\xfe", "no safetensors file"),
            (b"[1]", "no safetensors file"),
            (b"__import__('os')", "no safetensors file"),
            (b"", "no safetensors file"),
            (b" " * (10**7 + 1), "its header has 10000001 bytes, and at most 10000000 are read"),
        ],
        ids=lambda value: str(value[:20]),
    )
    def test_texts_that_are_no_header(self, path, check_refused, header, message):
        self.put(path, header)
        check_refused(message)

    @pytest.mark.parametrize(
        "metadata", [None, {}, {"guard": "null"}, {"guard": "{}", "more": ""}, {"guide": "{}"}], ids=str
    )
    def test_metadata_without_a_guard(self, path, check_refused, metadata):
        self.put(path, {"__metadata__": metadata})
        check_refused("it holds no guard")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 5000, "nested too deeply"),
        ("[" * 10**5, "more than 10000 lists and objects"),
        ("9" * 10**6, "a number of 1000000 digits"),
        ("[1e999]", "a number that is not finite"),
        ("[NaN]", "a number that is not finite"),
        ("[-Infinity]", "a number that is not finite"),
        ('{"a": 1, "a": 1}', "a key twice in one object"),
        ("__import__('os')", "Expecting value"),
    ],
    ids=lambda value: value[:20],
)
def test_json_that_is_not_read(text, message):
    with pytest.raises(ValueError, match=message):
        parsed(text)


def test_json_is_read_as_it_was_written():
    value = {"b": [1, -2, 0.1, 5e-324, 1.7976931348623157e308], "a": {"ü": None, "": True}}
    assert parsed(canonical(value)) == value
    assert canonical(parsed(canonical(value))) == canonical(value)
