"""`models.heads` on small architectures of every kind; the oracle is a forward pass written by hand."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, linear, normalize
from torch.testing import assert_close

from flatfold.core.errors import UnsupportedHead
from flatfold.models.at_rest import as_it_was
from flatfold.models.batches import split_batch
from flatfold.models.heads import find_head, probe, run
from tests.architectures import Net

C = 5


def images(n=3):
    return torch.randn(n, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def vectors(n=3):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(2))


def mlp():
    net = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, C))
    return net, vectors(), "2", lambda m, x: (x @ m[0].weight.T + m[0].bias).clamp(min=0)


def only_a_linear_layer():
    return nn.Linear(6, C), vectors(), "", lambda m, x: x


def without_bias():
    net = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, C, bias=False))
    return net, vectors(), "2", lambda m, x: torch.tanh(m[0](x))


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


def conv1d_head_with_singleton_dimension_left():
    net = Net(lambda m, x: m.head(m.body(x)[..., None]), body=nn.Linear(6, 7), head=nn.Conv1d(7, C, 1))
    return net, vectors(), "head", lambda m, x: m.body(x)


def vision_transformer_with_class_token():
    def forward(m, x):
        tokens = m.patches(x).flatten(2).mT
        tokens = torch.cat([torch.ones(len(x), 1, 8), tokens], 1)
        return m.head(m.norm(m.layer(tokens))[:, 0])

    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = Net(forward, patches=nn.Conv2d(3, 8, 2, 2), layer=layer, norm=nn.LayerNorm(8), head=nn.Linear(8, C))

    def oracle(m, x):
        tokens = torch.cat([torch.ones(len(x), 1, 8), m.patches(x).flatten(2).transpose(1, 2)], 1)
        return m.norm(m.layer.eval()(tokens))[:, 0]

    return net, images(), "head", oracle


def body_and_head(forward, **more):
    """A two-layer model whose forward does something particular around ``m.head(m.body(x))``."""
    net = Net(forward, body=nn.Linear(6, 7), head=nn.Linear(7, C), **more)
    return net, vectors(), "head", lambda m, x: m.body(x)


def hugging_face_output():
    return body_and_head(lambda m, x: SimpleNamespace(loss=None, logits=m.head(m.body(x)), hidden=x))


def dict_output():
    return body_and_head(lambda m, x: {"logits": m.head(m.body(x)), "hidden": x})


def tuple_output():
    return body_and_head(lambda m, x: (m.head(m.body(x)), x))


def squeezed_afterwards():
    return body_and_head(lambda m, x: m.head(m.body(x)[:, None]).squeeze(1))


def one_row_squeezed_to_a_vector():
    net, x, name, oracle = body_and_head(lambda m, x: m.head(m.body(x)).squeeze())
    return net, x[:1], name, oracle


def called_with_a_keyword():
    return body_and_head(lambda m, x: m.head(input=m.body(x)))


def input_changed_in_place_afterwards():
    def forward(m, x):
        h = m.body(x)
        z = m.head(h)
        h.zero_()
        return z

    return body_and_head(forward)


def logits_cast_to_another_type():
    return body_and_head(lambda m, x: m.head(m.body(x)).double())


def same_head_called_twice():
    return body_and_head(lambda m, x: (m.head(m.body(x * 2)), m.head(m.body(x)))[1])


def logits_from_the_first_of_two_calls():
    return body_and_head(lambda m, x: (m.head(m.body(x)), m.head(m.body(x * 2)))[0])


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


def in_float16():
    net, x, name, _ = mlp()
    return net.half(), x.half(), name, lambda m, x: m[1](m[0](x)).float()


FOUND = [
    mlp, only_a_linear_layer, without_bias, cnn_with_dropout_norm_and_flatten, conv_head_then_flatten,
    conv1d_head_with_singleton_dimension_left, vision_transformer_with_class_token, hugging_face_output, dict_output,
    tuple_output, squeezed_afterwards, one_row_squeezed_to_a_vector, called_with_a_keyword,
    input_changed_in_place_afterwards, logits_cast_to_another_type, same_head_called_twice,
    logits_from_the_first_of_two_calls, two_modules_with_one_weight, a_module_under_two_names, in_float64, in_bfloat16,
    in_float16,
]  # fmt: skip


@pytest.mark.parametrize("build", FOUND, ids=lambda build: build.__name__)
def test_the_head_and_its_input_are_found(build):
    torch.manual_seed(0)
    model, x, name, oracle = build()
    with as_it_was(model):
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


def two_heads_averaged():
    net, x, *_ = body_and_head(lambda m, x: (m.head(m.body(x)) + m.other(m.body(x))) / 2, other=nn.Linear(7, C))
    return net, x, "the linear layers 'head', 'other' have as many outputs .* averaged or added\\? .* head='other'"


def squeezenet():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, C, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return (
        net,
        images(),
        r"'1' runs at every token or pixel .* output is \(3, 5, 2, 2\), the logits are \(3, 5\)\. .* pools before",
    )


def functional_head():
    net, x, *_ = body_and_head(lambda m, x: linear(m.body(x), m.head.weight, m.head.bias))
    return net, x, r"The model called the linear layer 'body', but none with as many outputs as its logits \(3, 5\)"


def no_linear_layer():
    net = nn.Sequential(nn.Conv2d(3, C, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return net, images(), r"The model called no linear layer\. Put the last product into an nn.Linear"


def head_on_every_token():
    net, x, *_ = body_and_head(lambda m, x: m.head(m.body(x[:, None].repeat(1, 4, 1)))[:, -1])
    return net, x, r"'head' runs at every token .* its output is \(3, 4, 5\), the logits are \(3, 5\)\. .* selects"


def logits_for_every_token():
    net, x, *_ = body_and_head(lambda m, x: m.head(m.body(x[:, None].repeat(1, 4, 1))))
    return (
        net,
        x,
        r"'head' runs at every token or pixel of an input: its output is \(3, 4, 5\), the logits are \(3, 4, 5\)",
    )


def softmax_after_the_head():
    net, x, *_ = body_and_head(lambda m, x: m.head(m.body(x)).softmax(-1))
    return net, x, "'head' has as many outputs as there are logits, but the model changes them .* head='head'"


def scaled_in_place():
    net, x, *_ = body_and_head(lambda m, x: m.head(m.body(x)).mul_(3))
    return net, x, "'head' has as many outputs as there are logits, but the model changes them"


class Cosine(nn.Linear):
    def forward(self, x):
        return linear(normalize(x), self.weight, self.bias)


def a_linear_layer_that_is_not_linear():
    net, x, *_ = body_and_head(lambda m, x: m.head(m.body(x)))
    net.head = Cosine(7, C)
    return net, x, r"the head must compute z = W h \+ b, but 'head' \(Cosine\) gives something else: .* is [\d.]+ for"


def strided_conv_head():
    net = nn.Sequential(nn.Conv2d(3, C, 1, stride=4), nn.Flatten())
    return net, images(), "called no linear layer"


def grouped_conv_head():
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 6, 1, groups=3), nn.Flatten())
    return net, images(), "called no linear layer"


def vector_model():
    net, x, *_ = body_and_head(lambda m, x: m.head(m.body(x[0])))
    return net, x, "'head' runs at every token or pixel"


def rows_cut_by_the_model():
    net, x, *_ = body_and_head(lambda m, x: m.head(m.body(x[1:])))
    return net, x, "one row of features per input is needed, but 'head' got 2 rows for a batch of 3"


def no_logits_in_the_output():
    net, x, *_ = body_and_head(lambda m, x: {"scores": m.head(m.body(x))})
    return net, x, r"the model must return logits: .* It returned dict\. Wrap it"


def empty_tuple():
    net, x, *_ = body_and_head(lambda m, x: ())
    return net, x, "It returned tuple"


def logits_that_are_none():
    net, x, *_ = body_and_head(lambda m, x: SimpleNamespace(logits=None))
    return net, x, "It returned SimpleNamespace"


REFUSED = [
    two_heads_averaged, squeezenet, functional_head, no_linear_layer, head_on_every_token, logits_for_every_token,
    softmax_after_the_head, scaled_in_place, a_linear_layer_that_is_not_linear, strided_conv_head, grouped_conv_head,
    vector_model, rows_cut_by_the_model, no_logits_in_the_output, empty_tuple, logits_that_are_none,
]  # fmt: skip


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_a_model_without_a_head_is_refused_with_a_reason(build):
    torch.manual_seed(0)
    model, x, message = build()
    with pytest.raises(UnsupportedHead, match=message):
        find_head(model, x)


def test_of_two_layers_that_give_the_logits_the_last_is_taken():
    net, x, *_ = body_and_head(lambda m, x: (m.head(m.body(x)), m.twin(m.body(x)))[1], twin=nn.Linear(7, C))
    net.twin.load_state_dict(net.head.state_dict())
    assert find_head(net, x).name == "twin"


def test_the_batch_size_is_not_mistaken_for_the_number_of_classes():
    net, _, message = functional_head()
    with pytest.raises(UnsupportedHead, match=message.replace("3", "7")):
        find_head(net, vectors(7))  # as many rows as 'body' has outputs


def test_a_layer_that_returns_no_tensor_is_passed_over():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), None

    net, x, *_ = body_and_head(lambda m, x: m.head(m.pair(x)[0]), pair=Pair(6, 7))
    assert find_head(net, x).name == "head"


def test_a_long_list_of_layers_is_cut():
    net = nn.Sequential(*(nn.Linear(6, 6) for _ in range(11)), nn.Conv1d(1, 1, 3))
    message = r"The model called the linear layers 'net.3', .*, 'net.10' and 3 more, but none"
    with pytest.raises(UnsupportedHead, match=message):
        find_head(Net(lambda m, x: m.net[-1](m.net[:-1](x)[:, None])[:, 0], net=net), vectors())


def test_a_named_layer_is_taken_and_a_warning_says_that_the_logits_are_others():
    model, x, _ = two_heads_averaged()
    with pytest.warns(
        UserWarning, match="the output of 'head' is not what the model returns.* Leave out head="
    ) as seen:
        found = find_head(model, x, "head")
    assert seen[0].filename == __file__
    assert (found.name, found.gives_logits) == ("head", False)
    with as_it_was(model):
        assert_close(run(model, found, split_batch(x)).features, model.body(x))


def test_a_named_layer_whose_output_is_scaled_in_place_is_taken_as_it_was():
    model, x, _ = scaled_in_place()
    with pytest.warns(UserWarning, match="not what the model returns"):
        assert torch.equal(find_head(model, x, "head").head.weight, model.head.weight)


def test_naming_the_layer_that_gives_the_logits_warns_of_nothing():
    model, x, name, _ = a_module_under_two_names()
    assert find_head(model, x, name).gives_logits
    assert find_head(model, x, "again").name == "again"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("haed", r"no module 'haed'\. Did you mean 'head'\? The model has the linear layers 'body', 'head', 'spare'\."),
        ("qqq", r"the model has no module 'qqq'\. The model has the linear layers"),
        ("act", r"head= must name a linear layer or a 1x1 convolution; 'act' is a ReLU\. The model has"),
        ("", "the model itself is a Net"),
        ("spare", r"'spare' was never called\. Name a layer that the model uses"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name, message):
    model, x, *_ = body_and_head(lambda m, x: m.head(m.body(x)), act=nn.ReLU(), spare=nn.Linear(7, C))
    with pytest.raises(UnsupportedHead, match=message):
        find_head(model, x, name)


def test_a_model_without_linear_layers_says_so_when_one_is_named():
    with pytest.raises(UnsupportedHead, match=r"has no module 'fc'\. The model has no linear layers\."):
        find_head(nn.Sequential(nn.ReLU()), vectors(), "fc")


def test_a_named_layer_that_runs_on_tokens_is_refused():
    model, x, _ = head_on_every_token()
    with pytest.raises(UnsupportedHead, match="'head' runs at every token or pixel"):
        find_head(model, x, "head")


def test_a_later_batch_that_takes_another_way_is_refused():
    net, x, *_ = body_and_head(lambda m, x: (m.head if x.sum() > 0 else m.other)(m.body(x)), other=nn.Linear(7, C))
    with as_it_was(net):
        found, _ = probe(net, split_batch(x.abs()))
        with pytest.raises(
            UnsupportedHead, match="'head' gave the logits of the first batch but not those of a later one"
        ):
            run(net, found, split_batch(-x.abs()))


def test_a_head_with_one_output_is_refused_by_the_head():
    with pytest.raises(ValueError, match="a head needs at least two classes"):
        find_head(Net(lambda m, x: m.fc(x).squeeze(1), fc=nn.Linear(6, 1)), vectors())


def test_features_that_are_not_finite_are_refused():
    x = vectors()
    x[1, 0] = torch.nan
    with pytest.raises(ValueError, match="features must be finite, but row 1 has a NaN"):
        find_head(mlp()[0], x)


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="at least one input is needed to find the head, got an empty one"):
        find_head(mlp()[0], vectors(0))


def test_the_head_is_a_copy():
    model, x, *_ = mlp()
    found = find_head(model, x)
    before = found.head.weight.clone()
    with torch.no_grad():
        model[2].weight.zero_()
    assert torch.equal(found.head.weight, before)


def test_what_was_found_is_logged(caplog):
    with caplog.at_level(logging.INFO, "flatfold"):
        find_head(mlp()[0], vectors())
    assert caplog.messages == ["the head is '2': Head(5 classes, 7 features, bias, torch.float32)"]


def test_dict_batches_reach_the_model_by_name():
    net = Net(lambda m, pixel_values: m.fc(pixel_values), fc=nn.Linear(6, C))
    assert find_head(net, {"pixel_values": vectors(), "labels": torch.tensor([0, 1, 2])}).name == "fc"


def test_the_head_of_a_compiled_model_is_found():
    model, x, name, _ = mlp()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(x)  # from now on its hooks would be skipped
    assert find_head(compiled, x).name == name
    assert find_head(compiled, x, f"_orig_mod.{name}").name == name
    inside = nn.Sequential(compiled)
    assert find_head(inside, x).name == find_head(inside, x, f"0.{name}").name == f"0.{name}"
