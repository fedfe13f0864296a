"""Small classifiers of many kinds with random weights: what people guard, a thousand times smaller.

Each builder returns a model and `ROWS` inputs for it, a tensor or a dict of keyword arguments.
"""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

ROWS, CLASSES, WORDS = 48, 4, 50


def built(builder, seed=0):
    """Return the model of a builder, drawn so that every parameter matters, and its inputs."""
    # Libraries begin with zeros and small numbers, behind which a mistake in an early layer or a bias does not show.
    torch.manual_seed(seed)
    model, inputs = builder()
    with torch.no_grad():
        for name, values in (*model.named_parameters(), *model.named_buffers()):
            _draw(name.rpartition(".")[2], values)
    return model, inputs


def _draw(name, values):
    if name == "running_var" or (name == "weight" and values.ndim == 1):
        values.uniform_(0.5, 1.5)
    elif name == "running_mean" or (name == "bias" and values.is_floating_point()):
        values.uniform_(-0.3, 0.3)
    elif name == "weight":
        values.normal_(std=(2 / values[0].numel()) ** 0.5)


def vectors(width=12):
    return torch.randn(ROWS, width)


def images(size=32):
    return torch.randn(ROWS, 3, size, size)


def words(length=7):
    return torch.randint(2, WORDS, (ROWS, length))


def pixels(size=32):
    return {"pixel_values": images(size)}


def padded_words():
    """Sentences of five to eight words, as a tokeniser gives them."""
    mask = (torch.arange(8) < torch.randint(5, 9, (ROWS, 1))).long()
    return {"input_ids": torch.where(mask == 1, words(8), 1), "attention_mask": mask}


# Written by hand


class Net(nn.Module):
    """A model from a few modules and a forward function, so that a builder fits in a few lines."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.way = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args, **kwargs):
        return self.way(self, *args, **kwargs)


def mlp():
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES)), vectors()


def linear_alone():
    return nn.Linear(12, CLASSES), vectors()


def head_without_bias():
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, CLASSES, bias=False)), vectors()


def double_model():
    return tuple(part.double() for part in mlp())


def bfloat16_model():
    return tuple(part.bfloat16() for part in mlp())


def convolution_head():
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*body, nn.Conv2d(8, CLASSES, 1), nn.Flatten()), images(8)


def residual_cnn():
    def forward(m, x):
        x = torch.relu(m.norm1(m.conv1(x)))
        x = torch.relu(x + m.norm2(m.conv2(x)))
        return m.fc(x.mean(dim=(2, 3)))

    conv1, conv2 = nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
    norms = {"norm1": nn.BatchNorm2d(8), "norm2": nn.BatchNorm2d(8)}
    return Net(forward, conv1=conv1, conv2=conv2, **norms, fc=nn.Linear(8, CLASSES)), images(16)


def lstm():
    lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
    parts = {"words": nn.Embedding(WORDS, 16), "lstm": lstm, "out": nn.Linear(32, CLASSES)}
    return Net(lambda m, x: m.out(m.lstm(m.words(x))[0][:, -1]), **parts), words()


def gru():
    parts = {"gru": nn.GRU(3, 16, batch_first=True), "out": nn.Linear(16, CLASSES)}
    return Net(lambda m, x: m.out(m.gru(x)[1][-1]), **parts), torch.randn(ROWS, 9, 3)


def gru_state_with_its_layer():
    """The head gets the last state as a GRU gives it, ``(1, n, d)``."""
    model, x = gru()
    model.way = lambda m, x: m.out(m.gru(x)[1]).squeeze(0)
    return model, x


def time_first():
    """Sequences turned round for the recurrence, ``(time, n, d)``, and its last step given to the head."""
    model, x = gru()
    model.gru = nn.GRU(3, 16)
    model.way = lambda m, x: m.out(m.gru(x.transpose(0, 1))[0][-1])
    return model, x


def two_inputs():
    def forward(m, image, table):
        return m.head(torch.cat([m.conv(image).mean(dim=(2, 3)), m.table(table)], dim=1))

    model = Net(forward, conv=nn.Conv2d(3, 8, 3), table=nn.Linear(12, 8), head=nn.Linear(16, CLASSES))
    return model, {"image": images(8), "table": vectors()}


def _mlp_that_returns(output):
    def forward(m, x):
        hidden = torch.relu(m.body(x))
        return output(m.head(hidden), hidden)

    return Net(forward, body=nn.Linear(12, 16), head=nn.Linear(16, CLASSES)), vectors()


def returns_a_tuple():
    return _mlp_that_returns(lambda logits, hidden: (logits, hidden))


def returns_a_dict():
    return _mlp_that_returns(lambda logits, hidden: {"hidden": hidden, "logits": logits})


def auxiliary_head():
    """As in GoogLeNet: a second head for the training loss, called first and not returned."""
    model, x = _mlp_that_returns(lambda logits, hidden: logits)
    model.extra = nn.Linear(16, CLASSES)
    model.way = lambda m, x: (m.extra(m.body(x)), m.head(torch.relu(m.body(x))))[1:]
    return model, x


def two_views():
    """One head for two views of an input; the logits are those of the first."""
    model, x = _mlp_that_returns(lambda logits, hidden: logits)
    model.way = lambda m, x: (m.head(torch.relu(m.body(x))), m.head(torch.relu(m.body(x.flip(1)))))
    return model, x


def data_parallel():
    model, x = residual_cnn()
    return nn.DataParallel(model), x


def wrapped_with_normalisation():
    """A model inside of another that prepares its inputs."""
    model, x = residual_cnn()
    return Net(lambda m, x: m.network((x - 0.5) / 0.25), network=model), x


def tied_head():
    """Words are classified by their own embeddings: the weight of the head is that of the embedding."""
    parts = {"words": nn.Embedding(WORDS, 16), "mix": nn.Linear(16, 16), "head": nn.Linear(16, WORDS, bias=False)}
    model = Net(lambda m, x: m.head(torch.tanh(m.mix(m.words(x).mean(dim=1)))), **parts)
    model.head.weight = model.words.weight
    return model, words()


class LowRank(nn.Linear):
    """A linear layer with a correction of rank two, merged into the weight while it is not trained, as LoRA does."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.randn(outputs, 2))

    def train(self, mode=True):
        if mode != self.training:
            with torch.no_grad():
                self.weight.add_(self.up @ self.down, alpha=-1 if mode else 1)
        return super().train(mode)

    def forward(self, x):
        z = super().forward(x)
        return z + x @ self.down.T @ self.up.T if self.training else z


def low_rank_head():
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), LowRank(16, CLASSES)), vectors()


def weight_norm_head():
    """The weight of the head is computed from a direction and a length at every call."""
    head = nn.utils.parametrizations.weight_norm(nn.Linear(16, CLASSES))
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), head), vectors()


# Written by hand, with another relation between a linear layer and the logits


def two_heads_averaged():
    """As in distilled transformers."""
    model, x = _mlp_that_returns(lambda logits, hidden: logits)
    model.other = nn.Linear(16, CLASSES)
    model.way = lambda m, x: (m.head(torch.relu(m.body(x))) + m.other(torch.tanh(m.body(x)))) / 2
    return model, x


def decoder():
    """A recurrence whose head runs at every word; the logits are those of the last word that is no padding."""

    def forward(m, input_ids, attention_mask):
        every = m.head(m.gru(m.words(input_ids))[0])
        return every[torch.arange(len(every)), attention_mask.shape[1] - 1 - attention_mask.flip(1).argmax(dim=1)]

    parts = {"words": nn.Embedding(WORDS, 16), "gru": nn.GRU(16, 16, batch_first=True)}
    return Net(forward, **parts, head=nn.Linear(16, CLASSES)), padded_words()


def pooled_classes():
    """A convolution for classes at every pixel, then the mean."""
    head = [nn.Conv2d(8, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), *head), images(8)


# Written by hand, without a head that can be used


def two_heads_weighted():
    model, x = two_heads_averaged()
    model.way = lambda m, x: 0.7 * m.head(torch.relu(m.body(x))) + 0.3 * m.other(torch.tanh(m.body(x)))
    return model, x


def squeezenet():
    """A convolution for classes at every pixel, then a ReLU, then the mean."""
    head = [nn.Conv2d(8, CLASSES, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), *head), images(8)


def tagger():
    """Scores of every token, which are not linear in its features."""
    return nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, CLASSES), nn.Softsign()), words()


def no_linear_layer():
    return nn.Sequential(nn.Conv2d(3, CLASSES, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), images(8)


def probabilities():
    return _mlp_that_returns(lambda logits, hidden: logits.softmax(dim=-1))


class Cosine(nn.Linear):
    def forward(self, x):
        return 10 * F.linear(F.normalize(x), F.normalize(self.weight))


def cosine_head():
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), Cosine(16, CLASSES, bias=False)), vectors()


def nearest_prototype():
    """Minus the distance to a point for each class, as prototypical networks have it."""
    model = Net(lambda m, x: -torch.cdist(m.body(x), m.points), body=nn.Linear(12, 16))
    model.points = nn.Parameter(torch.randn(CLASSES, 16))
    return model, vectors()


# From transformers, by their configurations: nothing is downloaded


def hub(kind, task, inputs, **sizes):
    """Return a model of transformers with random weights, and what `inputs` draws."""
    transformers = pytest.importorskip("transformers", reason="flatfold[hf] is not installed")
    config = getattr(transformers, f"{kind}Config")(num_labels=CLASSES, **sizes)
    return getattr(transformers, f"{kind}For{task}")(config), inputs()


def sentences_with_an_end(end):
    """Seven words each, of which the last and no other is the `end` of the sentence."""
    return {"input_ids": torch.cat([torch.randint(3, WORDS, (ROWS, 6)), torch.full((ROWS, 1), end)], dim=1)}


def drawn(name, *shape):
    return {name: torch.randn(ROWS, *shape)}


TOKENS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
PATCHES = {**TOKENS, "image_size": 32, "patch_size": 8}
STAGES = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
TWO_STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
PYRAMID = {**STAGES, "num_attention_heads": [1, 1, 2, 2], "mlp_ratios": [2, 2, 2, 2]}
WINDOWS = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
UNITS = {"image_size": [32, 32], "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "mask_unit_size": [4, 4]}
THREE = {"hidden_sizes": [16] * 3, "num_attention_heads": [2] * 3, "depths": [1] * 3, "key_dim": [4] * 3}
LEVIT = {"inputs": partial(pixels, 64), "image_size": 64, **THREE}
SCALED = {"image_size": 32, "width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 128}
ENDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 0}
TEXT = {**TOKENS, **ENDS, "vocab_size": WORDS, "max_position_embeddings": 32}
GPT = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 1, "n_head": 2}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
BART = {"vocab_size": WORDS, "d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, **LAYERS}
T5 = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
CONVOLUTIONS = {"conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "classifier_proj_size": 16}
POSITIONS = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
SERIES = {"num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4, "use_cls_token": True}
SMALL = {"d_model": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32}
SEVERAL_TOWERS = {"vision_config": PATCHES, "text_config": TEXT}
FRAMES = {**TOKENS, "image_size": 16, "patch_size": 8, "num_frames": 2}
SPECTRUM = {**TOKENS, "patch_size": 8, "max_length": 32, "num_mel_bins": 16}


def image_model(kind, task="ImageClassification", inputs=pixels, **sizes):
    return partial(hub, kind, task, inputs, **sizes)


def text_model(kind, inputs=padded_words, **sizes):
    return partial(hub, kind, "SequenceClassification", inputs, **sizes)


HUB = {
    "vit": image_model("ViT", **PATCHES),
    "deit": image_model("DeiT", **PATCHES),
    "deit_with_teacher": image_model("DeiT", "ImageClassificationWithTeacher", **PATCHES),
    "beit": image_model("Beit", **PATCHES),
    "dinov2": image_model("Dinov2", **PATCHES),
    "clip": image_model("CLIP", **SEVERAL_TOWERS),
    "swin": image_model("Swin", **WINDOWS),
    "focalnet": image_model("FocalNet", image_size=32, embed_dim=8, depths=[1, 1], focal_levels=[1, 1]),
    "hiera": image_model("Hiera", num_query_pool=1, **UNITS),
    "pvt_v2": image_model("PvtV2", image_size=32, **PYRAMID),
    "segformer": image_model("Segformer", sr_ratios=[2, 2, 1, 1], **PYRAMID),
    "cvt": image_model("Cvt", embed_dim=[8, 8, 16], num_heads=[1, 1, 2], depth=[1, 2, 3]),
    "levit": image_model("Levit", **LEVIT),
    "levit_with_teacher": image_model("Levit", "ImageClassificationWithTeacher", **LEVIT),
    "swiftformer": image_model("SwiftFormer", embed_dims=[8, 8, 16, 16], depths=[1] * 4),
    "poolformer": image_model("PoolFormer", **STAGES),
    "convnext": image_model("ConvNext", **STAGES),
    "regnet": image_model("RegNet", embedding_size=8, groups_width=8, **STAGES),
    "resnet": image_model("ResNet", layer_type="basic", **TWO_STAGES),
    "bit": image_model("Bit", num_groups=4, **TWO_STAGES),
    "mobilenet_v2": image_model("MobileNetV2", image_size=32, depth_multiplier=0.1, min_depth=4),
    "efficientnet": image_model("EfficientNet", **SCALED),
    "mobilevit": image_model("MobileViT", hidden_sizes=[16] * 3, neck_hidden_sizes=[8] * 7, num_attention_heads=2),
    "videomae": image_model("VideoMAE", "VideoClassification", partial(drawn, "pixel_values", 2, 3, 16, 16), **FRAMES),
    "image_gpt": image_model("ImageGPT", inputs=lambda: {"input_ids": words(16)}, n_positions=16, **GPT),
    "bert": text_model("Bert", **TEXT),
    "roberta": text_model("Roberta", **TEXT),
    "modernbert": text_model("ModernBert", cls_token_id=0, sep_token_id=0, **TEXT),
    "albert": text_model("Albert", embedding_size=8, **TEXT),
    "electra": text_model("Electra", embedding_size=8, **TEXT),
    "deberta_v2": text_model("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], **TEXT),
    "distilbert": text_model("DistilBert", vocab_size=WORDS, dim=16, n_layers=1, n_heads=2, hidden_dim=32),
    "xlnet": text_model("XLNet", vocab_size=WORDS, d_model=16, n_layer=1, n_head=2, d_inner=32),
    "fnet": text_model("FNet", lambda: {"input_ids": words()}, **TEXT),
    "bart": text_model("Bart", partial(sentences_with_an_end, 2), **BART),
    "t5": text_model("T5", partial(sentences_with_an_end, 1), decoder_start_token_id=0, **T5),
    "gpt2": text_model("GPT2", n_positions=32, **GPT, **ENDS),
    "llama": text_model("Llama", **TEXT),
    "wav2vec2": text_model("Wav2Vec2", partial(drawn, "input_values", 200), **CONVOLUTIONS, **POSITIONS, **TOKENS),
    "audio_spectrogram": image_model("AST", "AudioClassification", partial(drawn, "input_values", 32, 16), **SPECTRUM),
    "patch_tst": image_model("PatchTST", "Classification", partial(drawn, "past_values", 16, 2), **SERIES, **SMALL),
}
