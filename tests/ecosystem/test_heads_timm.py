"""Guards around distilled transformers of timm, whose logits are the average of two layers' outputs."""

import pytest
import torch
from torch.testing import assert_close

import flatfold as ff
from flatfold.errors import UnsupportedHeadError
from flatfold.network.heads import find_head
from tests.architectures import CLASSES, built

pytestmark = pytest.mark.ecosystem

# With the sizes of their images that are possible, and the names of their two heads.
MODELS = {
    "deit_tiny_distilled_patch16_224": (64, ("head", "head_dist")),
    "levit_128s": (64, ("head.linear", "head_dist.linear")),
    "efficientformer_l1": (224, ("head", "head_dist")),
}
N = 24


def make(name, **options):
    timm = pytest.importorskip("timm", reason="timm is not installed: make test-ecosystem")
    side = MODELS[name][0]
    sizes = {} if side == 224 else {"img_size": side}
    model, x = built(
        lambda: (timm.create_model(name, num_classes=CLASSES, **sizes | options), torch.randn(N, 3, side, side))
    )
    return model.eval(), x


@pytest.mark.parametrize("name", MODELS)
def test_features_are_the_inputs_of_both_heads(name, tmp_path):
    model, x = make(name)
    first, second = (model.get_submodule(layer) for layer in MODELS[name][1])
    seen = []
    hooks = [each.register_forward_hook(lambda layer, args, output: seen.append(args[0])) for each in (first, second)]
    with torch.no_grad():
        logits = model(x)
    for hook in hooks:
        hook.remove()
    guard = ff.Guard.fit(
        model, [(x[:12], torch.arange(12) % CLASSES), (x[12:], torch.arange(12) % CLASSES)], method="fold", fpr=0.1
    )
    found = guard.network.found
    assert (found.relation.kind, found.relation.layers) == ("averaged", MODELS[name][1])
    features = guard.network(x).features
    assert_close(features, torch.cat(seen, dim=1))
    verdict = guard(x)
    assert torch.equal(verdict.logits, logits)
    assert_close(found.head(features), logits, rtol=1e-4, atol=1e-5 * float(logits.abs().max()))
    assert_close(torch.cat([guard(x[i : i + 1]).score for i in range(3)]), verdict.score[:3], rtol=1e-3, atol=1e-5)
    guard.save(tmp_path / "guard.safetensors")
    again = ff.Guard.load(tmp_path / "guard.safetensors", make(name)[0])
    assert torch.equal(again(x).score, verdict.score)


def test_other_networks_with_several_heads_are_read_and_squeezenet_is_refused():
    timm = pytest.importorskip("timm", reason="timm is not installed: make test-ecosystem")
    torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed: make test-ecosystem")
    for name, heads, side in (
        ("crossvit_tiny_240", 2, 240),
        ("efficientformerv2_s0", 2, 224),
        ("efficientvim_m1", 4, 224),
        ("repvit_m0_9", 2, 224),
        ("swiftformer_xs", 2, 224),
    ):
        model, x = built(lambda: (timm.create_model(name, num_classes=CLASSES), torch.randn(2, 3, side, side)))  # noqa: B023
        found = find_head(model, x)
        assert (found.relation.kind, len(found.relation.layers)) == ("averaged", heads), name
    model, x = built(lambda: (torchvision.models.squeezenet1_0(num_classes=CLASSES), torch.randn(2, 3, 64, 64)))
    with pytest.raises(UnsupportedHeadError, match=r"mean .* of the ReLU of the output of 'classifier.1'"):
        find_head(model, x)


@pytest.mark.filterwarnings("ignore")  # of torch.export
def test_in_float64_the_relation_is_exact_and_graphs_have_it(tmp_path):
    model, x = make("deit_tiny_distilled_patch16_224", depth=1)
    guard = ff.Guard.fit(model, [(x, torch.arange(N) % CLASSES)], method="fold", fpr=0.1)
    for suffix in (".pt2", ".onnx"):
        guard.export(tmp_path / f"guard{suffix}", [x])  # which compares
    bank, head = ff.extract(model.double(), [x.double()])
    with torch.no_grad():
        assert_close(head(bank.features), model(x.double()), rtol=1e-12, atol=1e-12)


def test_false_alarms_are_as_frequent_as_asked_for():
    model, _ = make("deit_tiny_distilled_patch16_224", depth=1)
    rates = []
    for seed in range(40):
        x = torch.randn(400, 3, 64, 64, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            labels = model(x[:200]).argmax(1)
        guard = ff.Guard.fit(model, [(x[:200], labels)], method="fourfold", fpr=0.05, seed=seed)
        rates.append(guard(x[200:]).is_ood.double().mean())
    rates = torch.stack(rates)
    assert abs(rates.mean() - 0.05) < 3 * rates.std() / len(rates) ** 0.5
