"""Forward passes: a model is left as it was, and an input it cannot take is told with its shape."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import flatfold as ff
from flatfold.data.feature_files import FeatureRows
from flatfold.data.images import ArrayImages
from flatfold.network import calls
from flatfold.network.calls import evaluating, watch_calls
from flatfold.network.heads import find_head
from flatfold.passes.inputs import score_inputs
from tests.architectures import Net
from tests.refusals import refused

X = torch.ones(2, 4)


def mixed_model():
    """A model with some modules in training mode and some not, gradients, and hooks of its own."""
    inner = nn.Sequential(nn.Dropout(), nn.Linear(4, 3))
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), inner)
    model[1].eval()
    model[3][0].eval()
    model[0].weight.requires_grad_(False)
    model(X).sum().backward()
    model[3][1].register_forward_hook(lambda *_: None)
    return model


def state(model):
    return {
        "modes": [module.training for module in model.modules()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "grads": [None if p.grad is None else p.grad.clone().tolist() for p in model.parameters()],
        "values": {name: value.tolist() for name, value in model.state_dict().items()},
        "grad mode": torch.is_grad_enabled(),
    }


def failing_loader():
    yield X
    raise KeyboardInterrupt


def test_a_model_is_left_as_it_was_even_after_an_exception():
    model = mixed_model()
    before = state(model)
    modes = []
    probe = model[3][1].register_forward_hook(lambda *_: modes.append((model[2].training, torch.is_grad_enabled())))
    ff.extract(model, [X, X])
    probe.remove()
    assert modes
    assert not any(training or grad for training, grad in modes)
    assert state(model) == before
    find_head(model, X)
    assert state(model) == before
    for loader, error in [([X, torch.ones(2, 9)], ValueError), (failing_loader(), KeyboardInterrupt)]:
        with pytest.raises(error):
            ff.extract(model, loader)
        assert state(model) == before, error


def test_a_model_is_moved_to_a_device_and_back_only_if_needed(monkeypatch):
    class Moving(nn.Linear):
        """Notes where it is sent instead of going there: this machine may have one device only."""

        sent = ()

        def to(self, device):
            self.sent += (str(device),)
            return self

    model = Moving(4, 3)
    ff.extract(model, [X], execution=ff.Execution(device="cpu"))
    assert model.sent == ()
    for device in ("abacus", "cuda:99", "meta"):
        with refused(device, device), evaluating(model, device):
            pass
    monkeypatch.setattr(calls, "usable_device", torch.device)  # "meta" stands for a device that is not the CPU
    with pytest.raises(RuntimeError):  # the weights stayed on the CPU, the inputs went to "meta"
        ff.extract(model, [X], execution=ff.Execution(device="meta"))
    assert model.sent == ("meta", "cpu")
    two = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3, device="meta"))
    with refused("two devices", "one device"), evaluating(two, "meta"):
        pass


def convolutional():
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 4 * 4, 2)]
    return nn.Sequential(*layers).eval()


def images(shape=(48, 64, 3), mode="RGB", n=3):
    return ArrayImages(np.zeros((n, *shape), np.uint8), None, ff.Transform(mode=mode), batch_size=2)


def test_images_that_do_not_fit_are_told_with_their_shape(tmp_path):
    model = convolutional()
    uses = {
        "extract": lambda source, x: ff.extract(model, source),
        "find_head": lambda source, x: find_head(model, x),
        "scores": lambda source, x: score_inputs(
            lambda x: model(x).sum(1), model, source, tmp_path / str(len(x[0])), {}
        ),
        "logits": lambda source, x: ff.logits_function(model)(x),
        "layers": lambda source, x: ff.layers_of(model, x, ["4"])(x),
    }
    for source, shape in [(images(), r"\(3, 48, 64\)"), (images((8, 8), "L"), r"\(1, 8, 8\)")]:
        for case, use in uses.items():
            with refused((case, shape), f"{shape}: .*transform"):
                use(source, source.read(range(2)))


def test_the_advice_suits_the_mistake(tmp_path):
    def asserting(m, x):
        raise AssertionError("Input height doesn't match.\nat line 7")

    x = torch.zeros(2, 3, 8, 8)
    takes_a_dict = Net(lambda m, batch: batch["pixels"])
    named = Net(lambda m, pixel_values: m.fc(pixel_values), fc=nn.Linear(4, 3))

    def decoding(m, x):  # as decoders of transformers do
        raise ValueError("Cannot handle batch sizes > 1 if no padding token is defined.")

    for model, inputs, keyword in [
        (Net(decoding), torch.zeros(2, 5, dtype=torch.int64), "config.pad_token_id = tokenizer"),
        (takes_a_dict, {"pixels": torch.zeros(2, 3), "mask": torch.zeros(2)}, "by name"),
        (nn.BatchNorm2d(3), torch.zeros(3, 8, 8), r"x\[None"),
        (convolutional(), torch.zeros(2, 8, 8, 3), "permute"),
        (convolutional(), x.to(torch.uint8), "uint8"),
        (convolutional(), x.double(), "float64"),
        (named, {"pixel_values": torch.zeros(2, 5)}, r"\(5,\)"),
        (Net(asserting), x, r"\(3, 8, 8\): Input height doesn't match\. "),  # the first line alone
    ]:
        with refused(keyword, f"^the network cannot take inputs of shape .*{keyword}"):
            find_head(model.eval(), inputs)
    with pytest.raises(ValueError, match=r"\(9,\): .*width"):  # in a later batch
        ff.extract(nn.Linear(4, 3), [torch.zeros(2, 4), torch.zeros(2, 9)])
    for features, keyword in ((torch.eye(5), "width"), (torch.eye(4, dtype=torch.float64), "float64")):
        ff.save_bank(ff.FeatureBank(features), tmp_path / "bank")
        with refused(features, rf"\({len(features)},\): .*{keyword}"):
            ff.extract(nn.Linear(4, 3), FeatureRows(tmp_path / "bank", labels=False))


def test_errors_that_are_not_about_the_inputs_stay_what_they_are(tmp_path):
    for error in [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("Expected all tensors to be on the same device, but found at least two devices"),
        ff.NotFittedError("fit first"),
        KeyError("a"),
    ]:

        def fail(*args, error=error):
            raise error

        model = nn.Linear(12, 2)
        with pytest.raises(type(error)) as caught:
            score_inputs(fail, model, images((2, 2, 3)), tmp_path / "scores", {})
        assert caught.value is error
        model.register_forward_pre_hook(fail)
        with pytest.raises(type(error)) as caught:
            ff.extract(model, [torch.zeros(1, 12)])
        assert caught.value is error


def test_calls_are_watched_in_this_thread_only_before_or_after_and_no_longer_than_the_block():
    layer, seen = nn.Linear(4, 3), []

    def before(module, args, kwargs):
        seen.append((module, len(args), list(kwargs)))

    def after(_module, args, kwargs, output):
        seen.append(output)
        return output + 1

    plain = layer(X)
    with watch_calls([(layer, before)], before=True), watch_calls([(layer, after)]):
        with ThreadPoolExecutor(1) as other:
            assert torch.equal(other.submit(layer, X).result(), plain)
        assert seen == []
        assert torch.equal(layer(input=X), plain + 1)
        assert seen[0] == (layer, 0, ["input"])
        assert torch.equal(seen[1], plain)
    assert torch.equal(layer(X), plain)
    assert len(seen) == 2
    with pytest.raises(AttributeError), watch_calls([(layer, before), (None, before)]):
        pass
    layer(X)
    assert len(seen) == 2, "hooks are removed if a later one fails"
