"""Data and models that several programs need: nothing is downloaded."""

from __future__ import annotations

import torch
from measured import note
from torch.utils.data import Dataset

NUMBERS = 8192  # more than a data set has images


class Digits(Dataset):
    """Images of noise. The first pixel of an image is its number."""

    def __init__(self, length):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.rand(200, 1, 28, 28, generator=generator)
        self.targets = [number % 10 for number in range(length)]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, number):
        image = self.images[number % 200].clone()
        image[0, 0, 0] = number / NUMBERS
        return image, self.targets[number]


def note_digits(model, arguments):
    """A hook of a model: note the images on which it trains."""
    if model.training:
        note((arguments[0][:, 0, 0, 0] * NUMBERS).int())


def sentences(count):
    """Return sentences of 10 to 40 words. The first two words are the sentence's number."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(8, 39, (count,), generator=generator).tolist()
    words = torch.randint(0, 998, (count, 40), generator=generator).tolist()
    return [
        " ".join(f"w{word}" for word in (number // 900, number % 900, *row[:length]))
        for number, (row, length) in enumerate(zip(words, lengths, strict=True))
    ]


def numbers(tokens):
    """Return the numbers of sentences."""
    return (tokens[:, 0] - 2) * 900 + tokens[:, 1] - 2


def tokenizer():
    """Return a tokenizer of the words w0 to w997."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{f"w{word}": word + 2 for word in range(998)}}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    )


def bert_config():
    """Return the configuration of a tiny BERT."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=1000, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip


def sentence_transformer():
    """Return a sentence transformer with a tiny BERT, which is saved in this folder."""
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertModel

    tokenizer().save_pretrained("bert")
    BertModel(bert_config()).save_pretrained("bert")
    return SentenceTransformer(modules=[models.Transformer("bert"), models.Pooling(32)])
