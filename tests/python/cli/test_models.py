# SPDX-License-Identifier: Apache-2.0
"""Weights of Hugging Face's models, and of plain PyTorch ones, give the same logits in models/."""

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import nn

# Both run nearly the same kernels: the last digits differ.
CLOSE = {"rtol": 1e-4, "atol": 2e-5}

SIZES = {
    "vocab_size": 300,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
LLAMA = SIZES | {"num_key_value_heads": 2}
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
T5 = {
    "vocab_size": 300,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 3,
}
VIT = {
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 1,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}


class Lstm(nn.Module):
    """PyTorch's word language model."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(300, 12)
        self.rnn = nn.LSTM(12, 20, 2, batch_first=True)
        self.decoder = nn.Linear(20, 300)

    def forward(self, inputs):
        return self.decoder(self.rnn(self.encoder(inputs))[0])


class Dlrm(nn.Module):
    """The recommender of its paper's authors: a bag of one row a table, products of all pairs."""

    def __init__(self):
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(rows, 4, mode="sum") for rows in (9, 7, 5, 5, 3, 8))
        self.bot_l = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4), nn.ReLU())
        self.top_l = nn.Sequential(nn.Linear(4 + 21, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, inputs, categories):
        dense = self.bot_l(inputs)
        rows = [table(categories[:, i : i + 1]) for i, table in enumerate(self.emb_l)]
        vectors = torch.stack([dense, *rows], 1)
        products = vectors @ vectors.mT
        pairs = [products[:, i, j] for i in range(7) for j in range(i)]
        return self.top_l(torch.cat([dense, torch.stack(pairs, 1)], 1)).squeeze(1)


def tokens(length, rows=2):
    return torch.randint(300, (rows, length))


def text():
    return {"inputs": tokens(20)}


def translation():
    return {"inputs": tokens(40), "decoder_inputs": tokens(9)}


def images():
    return {"inputs": torch.randn(3, 1, 8, 8)}


def table():
    return {"inputs": torch.randn(5, 6), "categories": torch.randint(3, (5, 6))}


def llama(**options):
    return hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, **options))


def t5(**options):
    return hf.T5ForConditionalGeneration(hf.T5Config(**T5, **options))


def vit():
    return hf.ViTForImageClassification(hf.ViTConfig(**VIT, num_labels=10))


# name -> (the model, the recipe's dataset, the recipe's model, a batch)
CASES = {
    "llama": (llama, "text", {"name": "llama", **LLAMA}, text),
    "llama 3, tied, with heads of their own width": (
        lambda: llama(
            head_dim=8,
            rms_norm_eps=1e-5,
            attention_bias=True,
            tie_word_embeddings=True,
            rope_parameters=STRETCHED,
        ),
        "text",
        {
            "name": "llama",
            **LLAMA,
            "head_dim": 8,
            "rms_norm_eps": 1e-5,
            "attention_bias": True,
            "tie_word_embeddings": True,
            **{(key if key == "rope_theta" else f"rope_{key}"): value for key, value in STRETCHED.items()},
        },
        text,
    ),
    "bert": (
        lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES)),
        "masked_text",
        {"name": "bert", **SIZES},
        text,
    ),
    "t5": (t5, "corrupted_text", {"name": "t5", **T5}, translation),
    "t5 1.1": (
        lambda: t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        "corrupted_text",
        {"name": "t5", **T5, "is_gated_act": True, "scale_decoder_outputs": False},
        translation,
    ),
    "vit": (vit, "digits", {"name": "vit", **VIT, "num_classes": 10}, images),
    "lstm": (
        Lstm,
        "text",
        {"name": "lstm", "vocab_size": 300, "embedding_size": 12, "hidden_size": 20, "num_layers": 2},
        text,
    ),
    "dlrm": (
        Dlrm,
        "files",
        {
            "name": "dlrm",
            "dense_features": 6,
            "table_rows": [9, 7, 5, 5, 3, 8],
            "embedding_dim": 4,
            "bottom": [10],
            "top": [12],
        },
        table,
    ),
}
HUGGING_FACE = {"inputs": "input_ids", "decoder_inputs": "decoder_input_ids"}


def toml_of(value):
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
    )


def saved(model, folder):
    """Every parameter off its initial value, so that each one matters, and the model in a folder."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder.mkdir()
    if isinstance(model, hf.PreTrainedModel):
        model.save_pretrained(folder)
    else:
        save_file(model.state_dict(), folder / "model.safetensors")
    return model.eval()


def logits_of(model, batch):
    if not isinstance(model, hf.PreTrainedModel):
        return model(**batch)
    if isinstance(model, hf.ViTForImageClassification):
        return model(pixel_values=batch["inputs"]).logits
    return model(**{HUGGING_FACE[name]: tensor for name, tensor in batch.items()}).logits


@pytest.mark.parametrize("case", CASES)
def test_weights_of_elsewhere_give_the_same_logits(shoal, tmp_path, case):
    make, dataset, keys, batch_of = CASES[case]
    torch.manual_seed(0)
    model = saved(make(), tmp_path / "theirs")
    batch = batch_of()
    save_file(batch, tmp_path / "inputs.safetensors")
    keys = {key: value for key, value in keys.items() if key != "rope_rope_type"}
    recipe = tmp_path / "recipe.toml"
    lines = [f"{key} = {toml_of(value)}" for key, value in keys.items()]
    recipe.write_text(
        "\n".join(["[model]", *lines, "[dataset]", f'name = "{dataset}"', "[training]", "seq_len = 32"])
    )
    result = shoal(
        "generate",
        recipe,
        f"--checkpoint.initial_load_path={tmp_path / 'theirs'}",
        f"--sample.inputs_file={tmp_path / 'inputs.safetensors'}",
        f"--sample.logits_file={tmp_path / 'logits.safetensors'}",
    )
    assert result.returncode == 0, result.stderr
    with torch.no_grad():
        wanted = logits_of(model, batch)
    got = load_file(tmp_path / "logits.safetensors")["logits"]
    assert wanted.std() > 0.1
    assert torch.allclose(got, wanted, **CLOSE), (got - wanted).abs().max()
