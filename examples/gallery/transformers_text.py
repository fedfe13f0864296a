"""A text classifier of transformers, with its tokeniser."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import flatfold as ff

torch.manual_seed(0)
words = ["rain", "wind", "sun", "bread", "soup", "cheese", "goal", "match", "team"]
numbers = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
by_word = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
by_word.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=by_word, pad_token="[PAD]", unk_token="[UNK]")
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=len(numbers), num_labels=3, **sizes))  # yours: your network

pick = torch.randint(3, (300, 8)).tolist()
held_out = [(" ".join(words[3 * (row % 3) + k] for k in each), row % 3) for row, each in enumerate(pick)]

guard = ff.Guard.fit(model, held_out, loading=ff.Loading(collate=tokenizer))  # or a Hugging Face data set
texts = ["rain and wind", "a goal of the team", "violin piano song"]
for text, explanation in zip(texts, guard.explain(tokenizer(texts, padding=True, return_tensors="pt")), strict=True):
    print(f"{text:20} {explanation}")

guard.save("text_guard.safetensors")
