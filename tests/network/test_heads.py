"""`models.heads` on small architectures of every kind; the oracle is a forward pass written by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, linear, normalize
from torch.testing import assert_close

from flatfold import Execution, Guard, UnsupportedHeadError, extract
from flatfold.data.batch import split_batch
from flatfold.network.calls import evaluating
from flatfold.network.heads import find_head, probe, run
from tests.architectures import Net
from tests.refusals import refused

C = 5


def images(n=3):
    return torch.randn(n, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def vectors(n=3):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(2))


def mlp():
    net = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, C))
    return net, vectors(), "2", lambda m, x: (x @ m[0].weight.T + m[0].bias).clamp(min=0)


def only_a_linear_layer():
    return nn.Linear(6, C, bias=False), vectors(), "", lambda m, x: x


def cnn_with_dropout_norm_and_flatten():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(32),
        nn.Dropout(0.5),
        nn.Linear(32, C),
    )

    def oracle(m, x):
        h = conv2d(x, m[0].weight, m[0].bias) / (1 + m[1].eps) ** 0.5  # fresh running statistics: mean 0, variance 1
        h = h.clamp(min=0).reshape(len(x), -1)
        return (h - h.mean(1, keepdim=True)) / (h.var(1, keepdim=True, unbiased=False) + m[4].eps).sqrt()

    return net, images(), "6", oracle


def conv_head_then_flatten():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, C, 1), nn.Flatten())
    return net, images(), "2", lambda m, x: m[0](x).mean((2, 3))


def body_and_head(forward, **more):
    """A two-layer model whose forward does something particular around ``m.head(m.body(x))``."""
    net = Net(forward, body=nn.Linear(6, 7), head=nn.Linear(7, C), **more)
    return net, vectors(), "head", lambda m, x: m.body(x)


AROUND = {
    "hugging face output": lambda m, x: SimpleNamespace(loss=None, logits=m.head(m.body(x)), hidden=x),
    "dict output": lambda m, x: {"logits": m.head(m.body(x)), "hidden": x},
    "tuple output": lambda m, x: (m.head(m.body(x)), x),
    "embedding and logits": lambda m, x: (h := m.body(x), m.head(h)),
    "loss and logits": lambda m, x: (x.mean(), m.head(m.body(x))),
    "squeezed afterwards": lambda m, x: m.head(m.body(x)[:, None]).squeeze(1),
    "one row squeezed to a vector": lambda m, x: m.head(m.body(x)).squeeze(),
    "called with a keyword": lambda m, x: m.head(input=m.body(x)),
    "logits cast to another type": lambda m, x: m.head(m.body(x)).double(),
    "same head called twice": lambda m, x: (m.head(m.body(x * 2)), m.head(m.body(x)))[1],
    "logits from the first of two calls": lambda m, x: (m.head(m.body(x)), m.head(m.body(x * 2)))[0],
}


def input_changed_in_place_afterwards():
    def forward(m, x):
        h = m.body(x)
        z = m.head(h)
        h.zero_()
        return z

    return body_and_head(forward)


def two_modules_with_one_weight():
    net, x, _, oracle = body_and_head(lambda m, x: (m.twin(x @ m.mix), m.head(m.body(x)))[1], twin=nn.Linear(7, C))
    net.twin.weight = net.head.weight
    net.register_buffer("mix", torch.randn(6, 7))
    return net, x, "head", oracle


def a_module_under_two_names():
    net, x, _, oracle = body_and_head(lambda m, x: m.again(m.body(x)))
    net.again = net.head
    return net, x, "head", oracle


def in_float64():
    net, x, name, oracle = mlp()
    return net.double(), x.double(), name, oracle


def in_bfloat16():
    net, x, name, _ = mlp()
    return net.bfloat16(), x.bfloat16(), name, lambda m, x: m[1](m[0](x)).float()


FOUND = [
    mlp, only_a_linear_layer, cnn_with_dropout_norm_and_flatten, conv_head_then_flatten,
    input_changed_in_place_afterwards, two_modules_with_one_weight, a_module_under_two_names, in_float64, in_bfloat16,
]  # fmt: skip


def assert_head_found(model, x, name, oracle):
    with evaluating(model):
        found, (features, logits) = probe(model, split_batch(x))
        again = run(model, found, split_batch(x))
        expected = oracle(model, x)
    layer = model.get_submodule(name)
    assert (found.name, found.module, found.gives_logits) == (name, layer, True)
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    assert features.dtype == found.head.weight.dtype == dtype
    assert_close(features, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(again.features, features)
    assert torch.equal(again.logits, logits)
    assert torch.equal(found.head.weight, layer.weight.detach().flatten(1).to(dtype))
    assert (found.head.bias is None) == (layer.bias is None)


@pytest.mark.parametrize("build", FOUND, ids=lambda build: build.__name__)
def test_the_head_and_its_input_are_found(build):
    torch.manual_seed(0)
    assert_head_found(*build())


@pytest.mark.parametrize("case", AROUND)
def test_the_head_is_found_whatever_the_model_does_around_it(case):
    torch.manual_seed(0)
    model, x, name, oracle = body_and_head(AROUND[case])
    assert_head_found(model, x[:1] if "one row" in case else x, name, oracle)


def weighted(m, x):
    return 0.7 * m.head(m.body(x)) + 0.3 * m.other(m.body(x))


def on_tokens(m, x):
    return m.head(m.body(x[:, None].repeat(1, 4, 1)))


class Cosine(nn.Linear):
    def forward(self, x):
        return linear(normalize(x), self.weight, self.bias)


# A forward pass around `body` and `head`, and a keyword of the reason for which it has no usable head.
REFUSED = {
    "two heads weighted": (weighted, "'head', 'other'.*weighted"),
    "functional head": (lambda m, x: linear(m.body(x), m.head.weight, m.head.bias), r"'body', but none .*\(3, 5\)"),
    "head on equal tokens": (lambda m, x: on_tokens(m, x)[:, -1], "several ways: .*one token.*; .*averaged"),
    "largest over all tokens": (
        lambda m, x: m.head(m.body(torch.stack([x, 2 * x], 1))).amax(1),
        r"'head' runs at every token .*\(3, 2, 5\)",
    ),
    "other logits for every token": (lambda m, x: on_tokens(m, x) ** 3, "'head' runs at every token"),
    "softmax after the head": (lambda m, x: m.head(m.body(x)).softmax(-1), "softmax of the output of 'head'"),
    "scaled in place": (lambda m, x: m.head(m.body(x)).mul_(3), "changes"),
    "not linear": (lambda m, x: m.cosine(m.body(x)), "Cosine"),
    "one input alone": (lambda m, x: m.head(m.body(x[0])), "'head' runs at every token"),
    "rows cut by the model": (lambda m, x: m.head(m.body(x[1:])), "2 rows for a batch of 3"),
    "two heads returned": (lambda m, x: (m.other(m.body(x)), m.head(m.body(x))), "'other' with 5 .*'head' with 5"),
    "no logits in the output": (lambda m, x: {"scores": m.head(m.body(x))}, "returned dict"),
}
POOL = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
REFUSED_CONVOLUTIONS = {
    "squeezenet": ([nn.Conv2d(3, 8, 3), nn.Conv2d(8, C, 1), nn.ReLU(), *POOL], "mean .* of the ReLU .* '1'"),
    "no linear layer": ([nn.Conv2d(3, C, 3), *POOL], "no linear layer"),
    "grouped": ([POOL[0], nn.Conv2d(3, 6, 1, groups=3), POOL[1]], "no linear layer"),
}


def refused_model(name):
    torch.manual_seed(0)
    return body_and_head(REFUSED[name][0], other=nn.Linear(7, C), cosine=Cosine(7, C))[0]


def test_a_model_without_a_head_is_refused_with_a_reason():
    for name, (_, keyword) in REFUSED.items():
        with refused(name, keyword, UnsupportedHeadError):
            find_head(refused_model(name), vectors())
    for name, (layers, keyword) in REFUSED_CONVOLUTIONS.items():
        with refused(name, keyword, UnsupportedHeadError):
            find_head(nn.Sequential(*layers), images())
    with pytest.raises(UnsupportedHeadError, match=r"\(7, 5\)"):  # as many rows as 'body' has outputs
        find_head(refused_model("functional head"), vectors(7))
    net = nn.Sequential(*(nn.Linear(6, 6) for _ in range(11)), nn.Conv1d(1, 1, 3))
    with pytest.raises(UnsupportedHeadError, match="3 more"):
        find_head(Net(lambda m, x: m.net[-1](m.net[:-1](x)[:, None])[:, 0], net=net), vectors())


def test_a_named_layer_is_taken_and_a_warning_says_that_the_logits_are_others():
    model, x = refused_model("two heads weighted"), vectors()
    with pytest.warns(UserWarning, match="'head'") as seen:
        found = find_head(model, x, "head")
    with pytest.warns(UserWarning, match="'head'") as seen_again:
        extract(model, [x], execution=Execution(head="head"))
    assert seen[0].filename == seen_again[0].filename == __file__
    assert (found.name, found.gives_logits) == ("head", False)
    with evaluating(model):
        assert_close(run(model, found, split_batch(x)).features, model.body(x))
    model, x, name, _ = a_module_under_two_names()  # and nothing warns
    assert find_head(model, x, name).gives_logits
    assert find_head(model, x, "again").name == "again"


def test_a_name_that_cannot_be_used_is_refused():
    model, x, *_ = body_and_head(lambda m, x: m.head(m.body(x)), act=nn.ReLU(), spare=nn.Linear(7, C))
    for case, name, keyword in [
        (model, "haed", "'head'"), (model, "qqq", "no module 'qqq'"), (model, "act", "ReLU"), (model, "", "Net"),
        (model, "spare", "never called"), (nn.Sequential(nn.ReLU()), "fc", "no linear layers"),
        (refused_model("other logits for every token"), "head", "every token"),
    ]:  # fmt: skip
        with refused(name, keyword, UnsupportedHeadError):
            find_head(case, x, name)


class Clipped(nn.Linear):
    def forward(self, x):
        return super().forward(x).clamp(-20, 20)


def test_a_head_that_is_not_linear_in_a_later_batch_is_refused():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), Clipped(7, C)), vectors(40)
    later = x.clone()
    later[17] *= 1000
    for runtime in ("torch", "onnx"):
        extract(model, [x, x], execution=Execution(runtime=runtime))
        with pytest.raises(UnsupportedHeadError, match=r"Clipped.*something else"):
            extract(model, [x, later], execution=Execution(runtime=runtime))
    guard = Guard.fit(model, [x], method="ebo", fpr=0.1)
    with pytest.raises(UnsupportedHeadError, match="Clipped"):
        guard(later)
    for dtype in (torch.bfloat16, torch.float16):  # products of opposite signs leave small logits with few digits
        half = nn.Linear(512, 100).to(dtype)
        extract(half, [torch.randn(8, 512).to(dtype) for _ in range(20)])


def test_of_two_linear_outputs_the_labels_tell_which_are_logits():
    pair = body_and_head(lambda m, x: (m.short(m.body(x)), m.head(m.body(x))), short=nn.Linear(7, 3))[0]
    assert find_head(pair, (vectors(), torch.tensor([0, 4, 1]))).name == "head"
    with pytest.raises(UnsupportedHeadError, match=r"'short' with 3 .*'head' with 5.*head='head'"):
        find_head(pair, (vectors(), torch.tensor([0, 2, 1])))
    assert find_head(pair, vectors(), "short").gives_logits
    bank, head = extract(pair, [(vectors(), torch.tensor([0, 4, 1])), (vectors(), torch.tensor([0, 0, 0]))])
    assert (len(bank), head.n_classes) == (6, C)


def test_a_later_batch_that_takes_another_way_is_refused():
    net, x, *_ = body_and_head(lambda m, x: (m.head if x.sum() > 0 else m.other)(m.body(x)), other=nn.Linear(7, C))
    with pytest.raises(UnsupportedHeadError, match="later"):
        extract(net, [x.abs(), -x.abs()])


def test_batches_without_a_finite_row_are_refused():
    x = vectors()
    x[1, 0] = torch.nan
    for inputs, keyword in [(x, "row 1"), (x[:0], "empty")]:
        with refused(keyword, keyword):
            find_head(mlp()[0], inputs)


def test_the_head_of_a_compiled_model_is_found():
    model, x, name, _ = mlp()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(x)  # from now on its hooks would be skipped
    assert find_head(compiled, x).name == name
    assert find_head(compiled, x, f"_orig_mod.{name}").name == name
    inside = nn.Sequential(compiled)
    assert find_head(inside, x).name == find_head(inside, x, f"0.{name}").name == f"0.{name}"
