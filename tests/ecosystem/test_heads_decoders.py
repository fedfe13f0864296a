"""Guards around decoders of transformers, with PEFT: the logits are those of one token of each input."""

import warnings
from copy import deepcopy

import pytest
import torch
from torch.nn.functional import linear
from torch.testing import assert_close

import flatfold as ff
from flatfold.errors import UnsupportedHeadError
from tests.architectures import CLASSES, WORDS, built
from tests.refusals import refused

pytestmark = pytest.mark.ecosystem

PAD, TOKENS, FPR = 0, 9, 0.1
KINDS = ["GPT2", "Llama", "Qwen2", "Mistral"]
SIDES = ["right", "left"]
ADAPTED = {"GPT2": ["c_attn"], "Llama": ["q_proj", "v_proj"]}  # layers that LoRA is usually put on
ADAPTERS = ["active", "merged", "head saved", "head adapted", "head adapted and merged"]


def sentences(n=60, side="right", tokens=TOKENS, seed=0):
    """Return sentences of three to all tokens with padding at a side, as a tokeniser does."""
    g = torch.Generator().manual_seed(seed)
    mask = (torch.arange(tokens) < torch.randint(3, tokens + 1, (n, 1), generator=g)).long()
    mask = mask.flip(1) if side == "left" else mask
    ids = torch.randint(1, WORDS, (n, tokens), generator=g)
    places = (mask.cumsum(1) - 1).clamp_min(0)  # without them, GPT-2 counts the padding
    return {"input_ids": torch.where(mask == 1, ids, PAD), "attention_mask": mask, "position_ids": places}


def make(kind, classes=CLASSES):
    """Return a small model with random weights that all matter."""
    import transformers

    sizes = {"vocab_size": WORDS, "num_labels": classes, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 1}
    if kind == "GPT2":
        sizes |= {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    else:
        sizes |= {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
        sizes |= {"intermediate_size": 32, "max_position_embeddings": 64}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    return built(lambda: (getattr(transformers, f"{kind}ForSequenceClassification")(config), None))[0].eval()


def adapt(kind, how):
    """Return a model with an adapter of PEFT whose weights are not those that it begins with."""
    peft = pytest.importorskip("peft", reason="peft is not installed: make test-ecosystem")
    targets = ADAPTED[kind] + ["score"] * how.startswith("head adapted")
    options = {"task_type": "SEQ_CLS"} if how == "head saved" else {}
    config = peft.LoraConfig(r=4, lora_alpha=16, lora_dropout=0.1, target_modules=targets, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT uses what transformers deprecates, and says how GPT-2's weights lie
        model = peft.get_peft_model(make(kind), config)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                values.normal_(std=0.3)
    if "merged" in how:
        model.merge_adapter()
    return model.eval()


def part(batch, *ends):
    return {name: values[slice(*ends)] for name, values in batch.items()}


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch).logits


def features_of(model, batch):
    """Return what the last layer gets at the last token that is no padding, by a hook of this test."""
    seen = []
    hook = model.score.register_forward_hook(lambda layer, args, output: seen.append(args[0]))
    logits_of(model, batch)
    hook.remove()
    mask = batch["attention_mask"]
    return seen[0][torch.arange(len(mask)), mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)]


def fit(model, batch, method="fold"):
    half = len(batch["input_ids"]) // 2
    data = [
        (part(batch, 0, half), torch.arange(half) % CLASSES),
        (part(batch, half, None), torch.arange(half) % CLASSES),
    ]
    return ff.Guard.fit(model, data, method=method, fpr=FPR)


def check_guard(guard, model, batch, folder):
    """Check a guard that was fitted on a model: by the model itself, alone and in batches, and from its file."""
    found = guard.network.found
    assert found.relation.kind == "selected"
    verdict = guard(batch)
    assert torch.equal(verdict.logits, logits_of(model, batch))
    features = guard.network(batch).features
    assert_close(linear(features, found.head.weight, found.head.bias), verdict.logits, rtol=1e-5, atol=1e-5)
    alone = torch.cat([guard(part(batch, row, row + 1)).score for row in range(8)])
    assert_close(alone, verdict.score[:8], rtol=1e-4, atol=1e-5)
    guard.save(folder / "guard.safetensors")
    again = ff.Guard.load(folder / "guard.safetensors", deepcopy(model))
    assert torch.equal(again(batch).score, verdict.score)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_guard_reads_the_token_that_the_model_classifies(kind, side, tmp_path):
    model, batch = make(kind), sentences(side=side)
    guard = fit(model, batch)
    assert guard.network.found.name == "score"
    check_guard(guard, model, batch, tmp_path)
    assert torch.equal(guard.network(batch).features, features_of(model, batch))
    double = make(kind).double()
    bank, head = ff.extract(double, [batch])
    assert torch.equal(bank.features, features_of(double, batch))
    assert_close(head(bank.features), logits_of(double, batch), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_do_not_depend_on_padding(kind):
    model, batch = make(kind), sentences()
    guard = fit(model, batch)
    expected = guard(batch).score
    for before, after in ((0, 5), (7, 0), (2, 3)):
        padded = {}
        for name, values in batch.items():
            ends = [values.new_full((len(values), width), PAD) for width in (before, after)]
            padded[name] = torch.cat([ends[0], values, ends[1]], dim=1)
        assert_close(guard(padded).score, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("how", ADAPTERS)
@pytest.mark.parametrize("kind", ADAPTED)
def test_a_guard_reads_the_head_of_the_active_adapter(kind, how, tmp_path):
    model, batch = adapt(kind, how), sentences()
    guard = fit(model, batch)
    name = "base_model.model.score" + ".modules_to_save.default" * (how == "head saved")
    assert guard.network.found.name == name
    check_guard(guard, model, batch, tmp_path)


def test_another_adapter_than_that_of_the_guard_is_refused(tmp_path):
    model, batch = adapt("Llama", "head saved"), sentences()
    guard = fit(model, batch)
    guard.save(tmp_path / "guard.safetensors")
    model.add_adapter("other", model.peft_config["default"])
    model.set_adapter("other")
    with refused(
        "another adapter", "token of each input in the first batch, but not in a later one", UnsupportedHeadError
    ):
        guard(batch)
    with pytest.raises(ValueError, match="other weights"):
        ff.Guard.load(tmp_path / "guard.safetensors", model)
    model.set_adapter("default")
    assert torch.equal(guard(batch).logits, logits_of(model.eval(), batch))


@pytest.mark.parametrize("classes", [1, CLASSES])
def test_in_bfloat16_the_token_is_the_right_one_though_paddings_may_have_its_logits(classes):
    model, batch = make("Llama", classes).bfloat16(), sentences(1500, tokens=60)
    bank, head = ff.extract(model, [batch])
    assert torch.equal(bank.features, features_of(model, batch).float())
    assert (bank.features.dtype, head.weight.dtype) == (torch.float32, torch.float32)
    some = part(batch, 0, 200)
    verdict = ff.Guard.fit(model, [(some, torch.arange(200) % max(classes, 2))], method="fourfold", fpr=FPR)(some)
    assert verdict.score.isfinite().all()
    assert classes == 1 or torch.equal(verdict.logits, logits_of(model, some))


@pytest.mark.filterwarnings("ignore")  # of torch.export
def test_guards_of_decoders_are_exported(tmp_path):
    batch = sentences()
    for name, model in (("gpt2", make("GPT2")), ("llama", make("Llama")), ("lora", adapt("Llama", "head adapted"))):
        guard = fit(model, batch)
        guard.export(tmp_path / f"{name}.pt2", [batch])  # which compares


def test_false_alarms_are_as_frequent_as_asked_for():
    model, rates = make("Llama"), []
    for seed in range(40):
        batch = sentences(400, seed=seed)
        known, new = part(batch, 0, 200), part(batch, 200, 400)
        guard = ff.Guard.fit(
            model, [(known, logits_of(model, known).argmax(1))], method="fourfold", fpr=0.05, seed=seed
        )
        rates.append(guard(new).is_ood.double().mean())
    rates = torch.stack(rates)
    assert abs(rates.mean() - 0.05) < 3 * rates.std() / len(rates) ** 0.5
