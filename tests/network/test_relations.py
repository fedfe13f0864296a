"""`network.relations`: the oracle of all relations is the model itself, which W h + b must reproduce in float64."""

import warnings
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.testing import assert_close

import flatfold as ff
from flatfold import Execution, Guard, UnsupportedHeadError, extract
from flatfold.core.bank import as_two_classes
from flatfold.data.batch import split_batch
from flatfold.network.calls import evaluating
from flatfold.network.graph import HeadModule
from flatfold.network.heads import check_rows, find_head, head_of, probe, run
from flatfold.network.relations import relation_of
from tests.architectures import Net
from tests.refusals import refused

C, D, TOKENS = 5, 7, 6


def make(forward, dtype=torch.float64, **modules):
    """Return a model with a body for vectors or tokens of six numbers, and two heads, whose weights are random."""
    torch.manual_seed(0)
    parts = {"body": nn.Linear(6, D), "head": nn.Linear(D, C), "other": nn.Linear(D, C)}
    return Net(forward, **parts, **modules).to(dtype)


def vectors(n=9, dtype=torch.float64, seed=1):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def sentences(n=9, tokens=TOKENS, left=False, dtype=torch.float64, seed=1):
    """Return padded sequences of vectors, of two to all tokens, and their masks."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, tokens + 1, (n, 1), generator=g)
    mask = (torch.arange(tokens) < lengths).long()
    mask = mask.flip(1) if left else mask
    return {"x": torch.randn(n, tokens, 6, generator=g, dtype=dtype), "attention_mask": mask}


def images(n=9, dtype=torch.float64):
    return torch.randn(n, 6, 3, 4, generator=torch.Generator().manual_seed(1), dtype=dtype)


def hidden(m, x):
    return torch.tanh(m.body(x))


def last_token(mask):
    return mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)


def at_last_token(m, x, attention_mask):
    every = m.head(hidden(m, x))
    return every[torch.arange(x.shape[0]), last_token(attention_mask)]


def ensemble(m, x):
    return torch.stack([m.head(hidden(m, x)), m.other(hidden(m, 2 * x)), m.third(hidden(m, x).square())]).mean(0)


def two_calls(m, x):
    return (m.head(hidden(m, x)) + m.head(hidden(m, x.flip(1)))) / 2


def join(*parts):
    return torch.cat(parts, dim=1)


def pick(h, mask):
    return h[torch.arange(len(h)), last_token(mask)]


# A model, its inputs, what the relation says, and the features by hand.
CASES = {
    "averaged": (
        lambda **o: make(lambda m, x: (m.head(hidden(m, x)) + m.other(m.body(x))) / 2, **o),
        vectors,
        "average of the outputs of 'head' and 'other'",
        lambda m, x: join(hidden(m, x), m.body(x)),
    ),
    "summed, one without bias": (
        lambda **o: make(lambda m, x: m.free(m.body(x)) + m.head(hidden(m, x)), free=nn.Linear(D, C, bias=False), **o),
        vectors,
        "sum of the outputs of 'head' and 'free'",
        lambda m, x: join(hidden(m, x), m.body(x)),
    ),
    "three of four": (
        lambda **o: make(
            lambda m, x: (m.fourth(m.body(x)), ensemble(m, x))[1], third=nn.Linear(D, C), fourth=nn.Linear(D, C), **o
        ),
        vectors,
        "average of the outputs of 'head', 'other' and 'third'",
        lambda m, x: join(hidden(m, x), hidden(m, 2 * x), hidden(m, x).square()),
    ),
    "one head in two calls": (
        lambda **o: make(two_calls, **o),
        vectors,
        "average of the output of 'head' in 2 calls",
        lambda m, x: (hidden(m, x) + hidden(m, x.flip(1))) / 2,
    ),
    "second in a tuple": (
        lambda **o: make(lambda m, x: (x.sin(), m.head(hidden(m, x)) + m.other(m.body(x))), **o),
        vectors,
        "sum of the outputs",
        lambda m, x: join(hidden(m, x), m.body(x)),
    ),
    "a single logit": (
        lambda **o: make(
            lambda m, x: (m.yes(hidden(m, x)) + m.no(m.body(x))) / 2, yes=nn.Linear(D, 1), no=nn.Linear(D, 1), **o
        ),
        vectors,
        "average of the outputs of 'yes' and 'no'",
        lambda m, x: join(hidden(m, x), m.body(x)),
    ),
    "last token": (
        lambda **o: make(lambda m, x: m.head(hidden(m, x))[:, -1], **o),
        lambda **o: sentences(**o)["x"],
        "output of 'head' at one token",
        lambda m, x: hidden(m, x)[:, -1],
    ),
    "last token that is no padding": (
        lambda **o: make(at_last_token, **o),
        sentences,
        "output of 'head' at one token",
        lambda m, x, attention_mask: pick(hidden(m, x), attention_mask),
    ),
    "padding on the left": (
        lambda **o: make(at_last_token, **o),
        lambda **o: sentences(left=True, **o),
        "output of 'head' at one token",
        lambda m, x, attention_mask: hidden(m, x)[:, -1],
    ),
    "one pixel": (
        lambda **o: make(lambda m, x: m.pixel(x.tanh())[:, :, 1, 2], pixel=nn.Conv2d(6, C, 1), **o),
        images,
        "output of 'pixel' at one token",
        lambda m, x: x.tanh()[:, :, 1, 2],
    ),
    "mean of pixels": (
        lambda **o: make(lambda m, x: m.pixel(x.tanh()).mean((2, 3)), pixel=nn.Conv2d(6, C, 1), **o),
        images,
        "output of 'pixel', averaged over its positions",
        lambda m, x: x.tanh().mean((2, 3)),
    ),
    "mean of steps": (
        lambda **o: make(lambda m, x: m.step(x.flatten(2)).mean(2), step=nn.Conv1d(6, C, 1), **o),
        images,
        "output of 'step', averaged over its positions",
        lambda m, x: x.flatten(2).mean(2),
    ),
    "mean of tokens": (
        lambda **o: make(lambda m, x: m.head(hidden(m, x)).mean(1), **o),
        lambda **o: sentences(**o)["x"],
        "output of 'head', averaged over its positions",
        lambda m, x: hidden(m, x).mean(1),
    ),
}
QUICK_GRAPH = "last token that is no padding"
GRAPHS = [case if case == QUICK_GRAPH else pytest.param(case, marks=pytest.mark.slow) for case in CASES]


def called(model, inputs):
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def logits_by(model, inputs):
    output = called(model, inputs)
    return as_two_classes(output[1] if isinstance(output, tuple) else output, dim=1)


def part(inputs, *ends):
    return (
        {key: value[slice(*ends)] for key, value in inputs.items()}
        if isinstance(inputs, dict)
        else inputs[slice(*ends)]
    )


def features_by_hand(case, model, inputs):
    with torch.no_grad():
        return CASES[case][3](model, **inputs) if isinstance(inputs, dict) else CASES[case][3](model, inputs)


@pytest.mark.parametrize("case", CASES)
def test_features_and_logits_are_those_of_the_model_in_float64(case):
    build, draw, sentence, _ = CASES[case]
    model, inputs = build(), draw()
    with evaluating(model):
        found, result = probe(model, split_batch(inputs))
        again = run(model, found, split_batch(inputs))
        alone = run(model, found, split_batch(part(inputs, 3, 4)))
    assert sentence in str(found.relation)
    assert found.gives_logits
    assert torch.equal(result.logits, logits_by(model, inputs))
    assert_close(result.features, features_by_hand(case, model, inputs), rtol=1e-12, atol=1e-12)
    weight, bias = found.head.weight, found.head.bias
    assert_close(linear(result.features, weight, bias), result.logits, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(again, result, strict=True):
        assert torch.equal(ours, theirs)
    assert_close(alone.features, result.features[3:4], rtol=1e-12, atol=1e-12)
    assert relation_of(found.relation.settings()) == found.relation


@pytest.mark.parametrize("case", CASES)
def test_a_guard_scores_the_features_is_saved_and_runs_as_one_module(case, tmp_path):
    build, draw, *_ = CASES[case]
    model, inputs = build(dtype=torch.float32), draw(n=40, dtype=torch.float32)
    data = [part(inputs, 0, 20), part(inputs, 20, 40)]
    guard = Guard.fit(model, data, method="fold", fpr=0.1)
    verdict = guard(inputs)
    assert torch.equal(verdict.logits, logits_by(model.eval(), inputs))
    assert_close(verdict.score, guard.detector(features_by_hand(case, model, inputs)), rtol=1e-5, atol=1e-6)
    guard.save(tmp_path / "guard.safetensors")
    again = Guard.load(tmp_path / "guard.safetensors", build(dtype=torch.float32))
    assert again.network.found.relation == guard.network.found.relation
    assert torch.equal(again(inputs).score, verdict.score)
    assert_close(deepcopy(again.network)(inputs).features, again.network(inputs).features)
    module = guard.as_module()
    for some in (inputs, part(inputs, 0, 1)):
        for ours, theirs in zip(called(module, some), guard(some), strict=True):
            assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    assert_close(called(compiled, inputs).score, verdict.score, rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


@pytest.mark.parametrize("case", GRAPHS)
def test_graphs_give_the_same_verdicts(case, tmp_path):
    pytest.importorskip("onnxruntime", reason="flatfold[onnx] is not installed")
    build, draw, *_ = CASES[case]
    model, inputs = build(dtype=torch.float32), draw(n=40, dtype=torch.float32)
    guard = Guard.fit(model, [inputs], method="fold", fpr=0.1)
    for suffix in (".onnx", ".pt2"):
        guard.export(tmp_path / f"guard{suffix}", [inputs])  # which compares
    expected = guard(inputs)
    if case == "a single logit":
        return  # errors of a runtime are relative to the largest logit of an input, and this one may be near 0
    guard.use_runtime("onnx")
    assert_close(guard(inputs).score, expected.score, rtol=1e-4, atol=1e-6)
    assert guard.network.onnx is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch itself
def test_compiled_networks_give_the_same_verdicts():
    for case in ("averaged", QUICK_GRAPH, "mean of pixels"):
        build, draw, *_ = CASES[case]
        model, inputs = build(dtype=torch.float32), draw(n=40, dtype=torch.float32)
        guard = Guard.fit(model, [inputs], method="fold", fpr=0.1)
        expected = guard(inputs)
        guard.use_runtime("torch-compile")
        for some in (inputs, part(inputs, 0, 7), part(inputs, 0, 1)):
            rows = len(guard(some).score)
            assert_close(guard(some).score, expected.score[:rows], rtol=1e-4, atol=1e-6)
        torch._dynamo.reset()


def test_the_token_may_be_another_one_in_a_later_batch_and_batches_may_be_longer_or_single():
    model = make(at_last_token)
    with evaluating(model):
        found, _ = probe(model, split_batch(sentences(2)))
        for batch in (
            sentences(4, left=True, seed=2),
            sentences(4, tokens=11, seed=3),
            sentences(1, tokens=3, seed=4),
            sentences(1, tokens=2, left=True, seed=5),
            sentences(3, tokens=TOKENS, seed=6),
        ):
            features, logits = run(model, found, split_batch(batch))
            expected = pick(hidden(model, batch["x"]), batch["attention_mask"])
            assert torch.equal(features, expected)
            assert torch.equal(logits, called(model, batch))


def test_of_several_tokens_with_the_logits_the_last_one_counts_that_is_no_padding():
    # The last feature has no weight, so that tokens differ in nothing that the head sees.
    model, n, mask = make(at_last_token), 4, torch.tensor([[1, 1, 1, 0, 0]]).repeat(4, 1)
    model.body = nn.Identity()
    model.head = nn.Linear(6, C, dtype=torch.float64)
    with torch.no_grad():
        model.head.weight[:, -1] = 0
    x = vectors(n)[:, None].repeat(1, 5, 1)
    x[:, :2] += 1
    x[:, :, -1] = torch.arange(5)
    with evaluating(model):
        found, _ = probe(model, split_batch({"x": x, "attention_mask": mask}))
        features, _ = run(model, found, split_batch({"x": x, "attention_mask": mask}))
        assert torch.equal(features, hidden(model, x)[:, 2])
        model.way = lambda m, x: m.head(hidden(m, x))[:, 2]  # without a mask
        assert torch.equal(run(model, found, split_batch(x)).features, hidden(model, x)[:, 4])
        assert torch.equal(HeadModule(model, found)(x)[0], hidden(model, x)[:, 4])


def test_the_verdict_does_not_depend_on_padding_or_batch():
    model = make(at_last_token, dtype=torch.float32)
    data = sentences(120, dtype=torch.float32)
    guard = Guard.fit(model, [(data, torch.arange(120) % C)], method="fourfold", fpr=0.1)
    expected = guard(data).score
    longer = {key: torch.cat([value, torch.zeros_like(value)], dim=1) for key, value in data.items()}
    earlier = {key: torch.cat([torch.zeros_like(value), value], dim=1) for key, value in data.items()}
    for other in (longer, earlier):
        assert_close(guard(other).score, expected, rtol=1e-4, atol=1e-5)
        assert_close(
            torch.cat([guard(part(other, i, i + 1)).score for i in range(9)]), expected[:9], rtol=1e-4, atol=1e-5
        )


def both(m, x):
    return (m.head(hidden(m, x)) + m.other(m.body(x))) / 2


def one_alone(m, x):
    return (m.other(m.body(x)), m.head(hidden(m, x)))[1]


def first_token(m, x):
    return m.head(hidden(m, x))[:, 0]


def mean_token(m, x):
    return m.head(hidden(m, x)).mean(1)


def test_a_later_batch_with_another_relation_is_refused():
    x, tokens = vectors(), sentences()["x"]
    for case, first, later, batch, keyword in (
        ("one head alone", both, one_alone, x, "something else"),
        ("one head called", both, lambda m, x: m.head(hidden(m, x)), x, "average .* later"),
        ("summed", both, lambda m, x: 2 * both(m, x), x, "something else"),
        ("mean", first_token, mean_token, tokens, "one token .* later"),
        ("scaled", first_token, lambda m, x: 2 * first_token(m, x), tokens, "one token .* later"),
        ("token", mean_token, first_token, tokens, "something else"),
        ("clipped", mean_token, lambda m, x: m.head(hidden(m, x)).relu().mean(1), tokens, "something else"),
    ):
        model = make(first)
        found = find_head(model, batch)
        model.way = later
        with refused(case, keyword, UnsupportedHeadError), evaluating(model):
            run(model, found, split_batch(batch))


def test_a_graph_raises_an_alarm_where_no_token_has_the_logits():
    model = make(at_last_token, dtype=torch.float32)
    data = sentences(40, dtype=torch.float32)
    guard = Guard.fit(model, [data], method="fold", fpr=0.1)
    module = guard.as_module()

    def shifted(m, **inputs):
        logits = at_last_token(m, **inputs)
        return logits + (torch.arange(len(logits)) == 3)[:, None]

    module.network.model.way = shifted
    with refused("called", "row 3"):
        called(module, data)
    verdict = torch.export.export(module, (), data).module()(**data)
    assert verdict.score.isnan().nonzero().flatten().tolist() == [3]
    assert verdict.is_ood[3]


def test_if_two_readings_fit_both_are_named():
    x, tokens = vectors(), sentences()["x"]
    equal = make(lambda m, x: first_token(m, x[:, None].repeat(1, 4, 1)))
    twins = make(lambda m, x: (m.other(hidden(m, x)), first_token(m, x))[1])
    pairs = make(lambda m, x: (m.twin(hidden(m, x)), both(m, x))[1], twin=nn.Linear(D, C))
    twins.other.load_state_dict(twins.head.state_dict())
    pairs.twin.load_state_dict(pairs.head.state_dict())
    for case, model, batch, keyword in (
        ("token or mean", equal, x, "'head' at one token of each input; .*'head', averaged over its positions"),
        ("two layers", twins, tokens, "'head' at one token of each input; .*'other' at one token .*head='other'"),
        ("two pairs", pairs, x, "'head' and 'other'; .*'other' and 'twin'.*head='other,twin'"),
    ):
        with refused(case, keyword, UnsupportedHeadError):
            find_head(model, batch)
    assert find_head(twins, tokens, "head").name == "head"
    assert find_head(pairs, x, "head,other").name == "head,other"


def test_a_reading_that_fits_some_of_the_inputs_is_none():
    x, tokens = vectors(), sentences(tokens=2)["x"]
    pairs = make(
        lambda m, x: (m.twin(hidden(m, x) * (torch.arange(len(x)) < 8)[:, None]), both(m, x))[1], twin=nn.Linear(D, C)
    )
    pairs.twin.load_state_dict(pairs.head.state_dict())
    assert find_head(pairs, x).name == "head,other"
    model = make(lambda m, x: m.direct(x).mean(1), direct=nn.Linear(6, C))
    tokens[0] = 0  # the mean is the output at every token
    assert find_head(model, tokens).relation.kind == "pooled"


def test_layers_to_average_can_be_named():
    model, x = CASES["three of four"][0](), vectors()
    found = find_head(model, x, "head, other, third")
    assert found.name == "head,other,third"
    bank, head = extract(model, [x], execution=Execution(head="third,head,other"))
    assert (bank.width, head.width) == (3 * D, 3 * D)
    assert_close(head(bank.features), called(model, x))
    for name, keyword in (
        ("head,other", "neither the average nor the sum .*'head', 'other'"),
        ("head,thrid", "'third'"),
    ):
        with refused(name, keyword, UnsupportedHeadError):
            find_head(model, x, name)
    with pytest.warns(UserWarning, match="does not return the output of 'head'"):
        assert not find_head(model, x, "head").gives_logits
    assert find_head(CASES["last token"][0](), sentences()["x"], "head").relation.kind == "selected"
    assert find_head(CASES["one head in two calls"][0](), x, "head").relation.kind == "averaged"


def test_a_row_whose_norm_is_clipped_is_found_among_others():
    class Clips(nn.Linear):
        """Clip the norm of features, which those of the first batch stay below."""

        def forward(self, x):
            return super().forward(x * (30 / x.norm(dim=-1, keepdim=True)).clamp_max(1))

    for classes in (10, 1000, 21_000):
        torch.manual_seed(classes)
        found = find_head(Clips(8, classes), torch.randn(64, 8))
        for seed in range(200 if classes == 10 else 10):
            torch.manual_seed(seed)
            x, row = torch.randn(64, 8), seed % 64
            with evaluating(found.module):
                run(found.module, found, split_batch(x))
                x[row] *= 31 / x[row].norm()
                with refused(row, "Clips", UnsupportedHeadError):
                    run(found.module, found, split_batch(x))


def test_a_single_changed_logit_of_a_likely_class_is_found():
    for classes in (10, 1000):
        torch.manual_seed(classes)
        layer = nn.Linear(8, classes)
        with evaluating(layer):
            found, result = probe(layer, split_batch(torch.randn(64, 8)))
        for row in range(64):
            logits = result.logits.clone()
            logits[row, logits[row].argmax()] *= 1.01
            with refused(row, "something else", UnsupportedHeadError):
                check_rows(found, result._replace(logits=logits))
        check_rows(found, result)
        check_rows(found, result._replace(logits=result.logits[:0], features=result.features[:0]))
        with evaluating(layer):
            result = run(layer, found, split_batch(torch.randn(64, 8) * torch.logspace(-4, 4, 64)[:, None]))
        result.logits[5, result.logits[5].argmax()] *= 1.01  # little compared with the largest logit of the batch
        with refused("a small row", "something else", UnsupportedHeadError):
            check_rows(found, result)


class Adapter(nn.Module):
    """As PEFT wraps a layer: the layer itself in `base_layer`, and layers of its own beside it."""

    def __init__(self, layer, scale=2.0, rank=2):
        super().__init__()
        self.base_layer = layer
        convolution = isinstance(layer, nn.Conv2d)
        width, outputs = layer.weight.shape[1], layer.weight.shape[0]
        self.lora_A = nn.Conv2d(width, rank, 1, bias=False) if convolution else nn.Linear(width, rank, bias=False)
        self.lora_B = nn.Conv2d(rank, outputs, 1, bias=False) if convolution else nn.Linear(rank, outputs, bias=False)
        self.scale, self.dropout = scale, nn.Dropout(0.5)

    def get_base_layer(self):
        return self.base_layer

    def forward(self, x):
        return self.base_layer(x) + self.scale * self.lora_B(self.lora_A(self.dropout(x)))


@pytest.mark.parametrize("case", ["last token", "averaged", "mean of pixels"])
def test_the_head_of_an_adapter_is_what_it_computes(case, tmp_path):
    build, draw, sentence, _ = CASES[case]
    model, inputs = build(dtype=torch.float32), draw(n=40, dtype=torch.float32)
    name = "pixel" if case == "mean of pixels" else "head"
    plain = getattr(model, name)
    adapter = Adapter(plain)
    setattr(model, name, adapter)
    guard = Guard.fit(model, [inputs], method="fold", fpr=0.1)
    assert sentence in str(guard.network.found.relation)
    assert torch.equal(guard(inputs).logits, called(model.eval(), inputs))
    merged = plain.weight + 2 * (adapter.lora_B.weight.flatten(1) @ adapter.lora_A.weight.flatten(1)).view_as(
        plain.weight
    )
    assert_close(head_of(adapter).weight, merged.detach().flatten(1), rtol=1e-5, atol=1e-6)
    assert torch.equal(head_of(plain).bias, plain.bias.detach())
    assert_close(head_of(adapter).bias, plain.bias.detach())
    guard.save(tmp_path / "guard.safetensors")
    assert torch.equal(Guard.load(tmp_path / "guard.safetensors", model)(inputs).score, guard(inputs).score)


def test_an_adapter_is_one_layer_not_the_sum_of_its_parts():
    model = make(lambda m, x: m.head(hidden(m, x)) + m.other(m.body(x)))
    model.head = Adapter(model.head, scale=1.0).double()
    assert find_head(model, vectors()).name == "head,other"
    plain = Net(lambda m, x: m.head(m.base_layer(x).tanh()), base_layer=nn.Linear(6, D), head=nn.Linear(D, C))
    assert find_head(plain.double(), vectors()).name == "head"  # whose first layer has an unlucky name


class Packed(nn.Linear):
    """As bitsandbytes has it: weights of four bits, two in a byte."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.matrix = self.weight.detach().clone()
        self.weight = nn.Parameter(torch.zeros(self.weight.numel() // 2, 1, dtype=torch.uint8), requires_grad=False)

    def forward(self, x):
        return linear(x, self.matrix, self.bias)


def test_quantised_layers_are_refused_with_a_sentence():
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, C))
    packed = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Packed(8, C))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch itself moves its quantisation elsewhere
        dynamic = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)
    for model in (packed, dynamic):
        with refused(model, "'2' .*quantised", UnsupportedHeadError):
            extract(model, [vectors(dtype=torch.float32)])
        with refused(model, "'2' is a quantised", UnsupportedHeadError):
            find_head(model, vectors(dtype=torch.float32), "2")
    body_only = nn.Sequential(dynamic[0], nn.ReLU(), plain[2])
    assert find_head(body_only, vectors(dtype=torch.float32)).name == "2"


@pytest.mark.parametrize("case", ["last token that is no padding", "averaged", "mean of pixels"])
def test_models_in_bfloat16_have_scores_in_float32_and_the_logits_of_the_model(case):
    build, draw, *_ = CASES[case]
    model, inputs = build(dtype=torch.bfloat16), draw(n=200, dtype=torch.bfloat16)
    guard = Guard.fit(model, [(inputs, torch.arange(200) % C)], method="fourfold", fpr=0.1)
    verdict, features = guard(inputs), guard.network(inputs).features
    assert torch.equal(verdict.logits, called(model.eval(), inputs))
    assert (verdict.logits.dtype, features.dtype, verdict.score.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert verdict.score.isfinite().all()
    assert_close(guard.network.found.head(features), verdict.logits.float(), rtol=0.02, atol=0.02)


def test_rows_that_are_not_finite_are_named():
    for case in ("averaged", "last token", "mean of pixels"):
        build, draw, *_ = CASES[case]
        model, inputs = build(), draw()
        found, later = find_head(model, inputs), inputs.clone()
        later[4] = torch.nan
        with refused(case, "row 13"):
            extract(model, [inputs, later])
        with evaluating(model):
            assert run(model, found, split_batch(later)).features[4].isnan().all()


def test_layers_with_a_gradient_end_in_the_features():
    for case in ("averaged", "mean of pixels", "mean of steps", "mean of tokens"):
        build, draw, *_ = CASES[case]
        model, x = build().eval(), draw()
        (features,), head = ff.layers_and_head(model, x)(x.requires_grad_())
        assert_close(head(features), model(x))
        (ours,) = torch.autograd.grad(head(features).square().sum(), x)
        (theirs,) = torch.autograd.grad(model(x).square().sum(), x)
        assert_close(ours, theirs)
    for case in ("last token", "one head in two calls"):
        build, draw, *_ = CASES[case]
        with refused(case, "method on features"):
            ff.layers_and_head(build().eval(), draw())


def test_a_bank_on_disk_belongs_to_its_relation(tmp_path):
    model = make(lambda m, x: (m.head(hidden(m, x)) + m.other(m.body(x))) / 2)
    options = {"out": tmp_path / "bank", "key": "vectors"}
    extract(model, [vectors()], **options)
    assert len(extract(model, [vectors()], **options)[0]) == 9
    model.way = lambda m, x: m.head(hidden(m, x)) + m.other(m.body(x))
    with pytest.raises(ValueError, match="head"):
        extract(model, [vectors()], **options)


def test_a_benchmark_compares_methods_on_their_features():
    for case in ("averaged", "last token that is no padding", "mean of pixels"):
        build, draw, *_ = CASES[case]
        model, inputs = build(dtype=torch.float32).eval(), draw(n=120, dtype=torch.float32)
        fit, known, new = (part(inputs, start, start + 40) for start in (0, 40, 80))
        labels = torch.arange(40) % C
        results = ff.benchmark(
            model, [(known, labels)], {"new": [new]}, fit=[(fit, labels)], methods=["msp", "fold"], bootstrap=20
        )
        scores = [1 - logits_by(model, x).softmax(-1).amax(-1) for x in (known, new)]
        assert results.cells["msp", "new"].auroc == pytest.approx(ff.auroc(*scores), abs=1e-6)
        assert not results.left_out


def test_settings_that_no_relation_has_are_refused():
    good = {"kind": "averaged", "layers": ["a", "b"], "calls": [1, 1], "summed": False, "output": 0}
    assert relation_of(good).settings() == good
    for change in (
        {"kind": "linear"}, {"kind": []}, {"layers": "ab"}, {"layers": []}, {"layers": [1, 2]}, {"calls": [1]},
        {"calls": [0, 1]}, {"calls": [True, 1]}, {"summed": 1}, {"output": -1}, {"output": True}, {"more": 1},
    ):  # fmt: skip
        with refused(change, "relation"):
            relation_of(good | change)
    with refused("two", "relation"):
        relation_of({"kind": "pooled", "layers": ["a", "b"], "output": 0})
