# SPDX-License-Identifier: Apache-2.0
"""Weights go to and from transformers' GPT-2, with the same logits, and what does not fit is named."""

import json
import subprocess

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

CONFIG = {
    "vocab_size": 300,
    "n_positions": 16,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}
TOKENS = [5, 290, 17, 3, 3, 299, 0, 64]
# Both run the same kernels, but for the attention mask: the last digits differ.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture
def theirs(tmp_path):
    """transformers' tiny random model, and the folder it was saved to."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**CONFIG)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # biases and norms are not what they begin as
    model.save_pretrained(tmp_path / "theirs")
    return model, tmp_path / "theirs"


def logits_of(model):
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits


def generate(shoal, tiny, path, *overrides):
    logits = tiny.parent / "logits.safetensors"
    result = shoal(
        "generate",
        tiny,
        f"--checkpoint.initial_load_path={path}",
        f"--sample.prompt_tokens={TOKENS}",
        f"--sample.logits_file={logits}",
        "--sample.top_k=1",
        *overrides,
    )
    return result, logits


def test_weights_of_transformers_give_its_logits_and_its_text(shoal, tiny, theirs):
    model, folder = theirs
    result, path = generate(shoal, tiny, folder)
    assert result.returncode == 0, result.stderr
    assert torch.allclose(load_file(path)["logits"], logits_of(model), **CLOSE)
    written = [int(token) for token in result.stdout.split()]
    prompt = torch.tensor([TOKENS])
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    greedy = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    assert written == greedy[0].tolist()


def test_a_checkpoint_goes_to_transformers_and_back_without_losing_a_bit(shoal, tiny, theirs):
    model, folder = theirs
    out = tiny.parent / "out"
    # Begins with their weights, trains, exports; what is exported comes back to the same losses.
    arguments = [f"--checkpoint.initial_load_path={folder}", "--checkpoint.enable=true", "--sample.tokens=0"]
    assert shoal("train", tiny, *arguments).returncode == 0
    exported = tiny.parent / "exported"
    assert shoal("checkpoint", "export", out, exported).returncode == 0
    ours = transformers.GPT2LMHeadModel.from_pretrained(exported).eval()
    before, after = model.state_dict(), ours.state_dict()
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    result, path = generate(shoal, tiny, out / "checkpoint" / "step_00000004")
    assert result.returncode == 0, result.stderr
    assert torch.allclose(load_file(path)["logits"], logits_of(ours), **CLOSE)
    ours.save_pretrained(tiny.parent / "back")
    _, again = generate(shoal, tiny, tiny.parent / "back")
    assert torch.equal(load_file(path)["logits"], load_file(again)["logits"])


def test_weights_that_are_not_trained_come_back_bit_for_bit(shoal, tiny, theirs):
    model, folder = theirs
    arguments = [f"--checkpoint.initial_load_path={folder}", "--checkpoint.enable=true", "--sample.tokens=0"]
    still = ["--optimizer.name=SGD", "--optimizer.lr=0.0", "--optimizer.weight_decay=0.0"]
    assert shoal("train", tiny, *arguments, *still).returncode == 0
    exported = tiny.parent / "exported"
    assert shoal("checkpoint", "export", tiny.parent / "out", exported).returncode == 0
    back = transformers.GPT2LMHeadModel.from_pretrained(exported).eval()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name
    assert torch.equal(logits_of(model), logits_of(back))


def test_a_model_without_its_head_and_with_old_masks_is_read_too(shoal, tiny, theirs):
    model, _ = theirs
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in model.state_dict().items()}
    del tensors["lm_head.weight"]
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, tiny.parent / "base.safetensors"
    )
    result, path = generate(shoal, tiny, tiny.parent / "base.safetensors")
    assert result.returncode == 0, result.stderr
    assert torch.allclose(load_file(path)["logits"], logits_of(model), **CLOSE)


def test_half_precision_weights_are_widened(shoal, tiny, theirs):
    model, _ = theirs
    half = {
        name: tensor.bfloat16() for name, tensor in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(half, tiny.parent / "half.safetensors")
    result, path = generate(shoal, tiny, tiny.parent / "half.safetensors")
    assert result.returncode == 0, result.stderr
    model.load_state_dict({name: tensor.float() for name, tensor in half.items()}, strict=False)
    assert torch.allclose(load_file(path)["logits"], logits_of(model), **CLOSE)


def test_all_that_does_not_fit_is_listed(shoal, tiny, theirs):
    _, folder = theirs
    result, _ = generate(shoal, tiny, folder, "--model.n_head=4", "--model.n_layer=2")
    assert result.returncode == 1
    for part in (
        "config.json does not fit the recipe",
        "model.n_head is 4, there 2",
        "model.n_layer is 2, there 1",
    ):
        assert part in result.stderr
    (folder / "config.json").unlink()
    result, _ = generate(shoal, tiny, folder, "--model.n_layer=2", "--model.n_embd=32")
    assert "transformer.h.1.attn.c_attn.weight: absent, wanted f32[32, 96]" in result.stderr
    assert "transformer.ln_f.bias: is f32[16], wanted f32[32]" in result.stderr


def test_an_untied_head_and_a_pickle_are_refused(shoal, tiny, theirs):
    model, _ = theirs
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors["lm_head.weight"] += 1
    save_file(tensors, tiny.parent / "untied.safetensors")
    result, _ = generate(shoal, tiny, tiny.parent / "untied.safetensors")
    assert result.returncode == 1 and "lm_head.weight is not the embedding's" in result.stderr
    torch.save(model.state_dict(), tiny.parent / "model.pt")
    result, _ = generate(shoal, tiny, tiny.parent / "model.pt")
    assert result.returncode == 1 and "is a pickle" in result.stderr


def test_the_exported_config_is_the_recipes(shoal, tiny):
    assert shoal("train", tiny, "--checkpoint.enable=true", "--sample.tokens=0").returncode == 0
    assert shoal("checkpoint", "export", tiny.parent / "out", tiny.parent / "exported").returncode == 0
    config = json.loads((tiny.parent / "exported" / "config.json").read_text())
    assert all(config[key] == value for key, value in CONFIG.items())


def test_generate_writes_text_from_the_newest_checkpoint(shoal, tiny):
    train = [tiny, "--checkpoint.enable=true", "--training.seed=3"]
    assert shoal("train", *train).returncode == 0
    command = [str(shoal.path), "generate", *(str(word) for word in train)]
    written = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    assert written == (tiny.parent / "out" / "sample.txt").read_bytes() + b"\n"


LLAMA = """
[job]
dump_folder = "{folder}/out"

[model]
name = "llama"
vocab_size = 300
hidden_size = 16
intermediate_size = 24
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
max_position_embeddings = 32
rms_norm_eps = 1e-5
rope_theta = 5000.0

[dataset]
path = "{folder}/text.txt"
held_out_bytes = 400

[training]
local_batch_size = 2
seq_len = 16
steps = 4

[validation]
freq = 0

[sample]
tokens = 5
"""


@pytest.mark.parametrize("stretched", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_llama_goes_both_ways_too(shoal, tiny, tmp_path, tied, stretched):
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    overrides = [f"--model.tie_word_embeddings={str(tied).lower()}"]
    if stretched:
        stretching = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope |= {"rope_type": "llama3", "original_max_position_embeddings": 16} | stretching
        overrides += ["--model.rope_factor=4", "--model.rope_original_max_position_embeddings=16"]
    sizes = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}
    rest = {"rms_norm_eps": 1e-5, "rope_parameters": rope, "tie_word_embeddings": tied}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, **heads, **rest, bos_token_id=None, eos_token_id=None)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "theirs")
    recipe = tmp_path / "llama.toml"
    recipe.write_text(LLAMA.format(folder=tmp_path))
    result, path = generate(shoal, recipe, tmp_path / "theirs", *overrides)
    assert result.returncode == 0, result.stderr
    assert torch.allclose(load_file(path)["logits"], logits_of(model), **CLOSE)
    train = [f"--checkpoint.initial_load_path={tmp_path}/theirs", "--checkpoint.enable=true", *overrides]
    result = shoal("train", recipe, *train)
    assert result.returncode == 0, result.stderr
    assert shoal("checkpoint", "export", tmp_path / "out", tmp_path / "exported").returncode == 0
    ours = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "exported").eval()
    assert ours.config.rope_parameters["rope_type"] == rope["rope_type"]
    result, path = generate(shoal, recipe, tmp_path / "exported", *overrides)
    assert result.returncode == 0, result.stderr
    assert torch.allclose(load_file(path)["logits"], logits_of(ours), **CLOSE)
    result, _ = generate(shoal, recipe, tmp_path / "exported", *overrides, "--model.rope_theta=7000.0")
    assert result.returncode == 1 and "model.rope_theta is 7000.0, there 5000.0" in result.stderr
    config_file = tmp_path / "exported" / "config.json"
    config = json.loads(config_file.read_text())
    config["rope_parameters"]["rope_type"] = "yarn"
    config_file.write_text(json.dumps(config))
    result, _ = generate(shoal, recipe, tmp_path / "exported", *overrides)
    assert result.returncode == 1 and f'rope_type there is "yarn", here {rope["rope_type"]}' in result.stderr
