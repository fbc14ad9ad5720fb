# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models from their configurations, small, unmodified: name -> (model, batch)."""

import torch
import transformers as hf

VOCABULARY = 96
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def tokens(rows=3, length=12):
    return torch.randint(3, VOCABULARY, (rows, length))


def text_batch(**extra):
    ids = tokens()
    return {"input_ids": ids, "labels": ids.clone(), **extra}


def padded_batch():
    batch = text_batch(attention_mask=torch.ones(3, 12, dtype=torch.long))
    batch["attention_mask"][1, 8:] = 0
    batch["labels"][1, 8:] = -100
    return batch


def image_batch(size=32, classes=5):
    return {"pixel_values": torch.randn(3, 3, size, size).double(), "labels": torch.randint(0, classes, (3,))}


def without_dropout(config):
    for name in vars(config).copy():
        value = getattr(config, name)
        if ("drop" in name or name in {"layerdrop", "mask_time_prob"}) and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def make(model, config, batch):
    torch.manual_seed(1)
    return model(without_dropout(config)), batch


def gpt2():
    config = hf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return make(hf.GPT2LMHeadModel, config, padded_batch())


def llama():
    return make(hf.LlamaForCausalLM, hf.LlamaConfig(**SMALL, num_key_value_heads=2), text_batch())


def bert():
    return make(hf.BertForMaskedLM, hf.BertConfig(**SMALL), padded_batch())


def t5():
    config = hf.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return make(hf.T5ForConditionalGeneration, config, padded_batch())


def vit():
    config = hf.ViTConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
    )
    config.num_labels = 5
    return make(hf.ViTForImageClassification, config, image_batch())


def resnet():
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_labels=5
    )
    return make(hf.ResNetForImageClassification, config, image_batch())


def mixtral():
    config = hf.MixtralConfig(
        **SMALL, num_key_value_heads=2, num_local_experts=4, experts_implementation="batched_mm"
    )
    return make(hf.MixtralForCausalLM, config, text_batch())


def qwen3():
    return make(hf.Qwen3ForCausalLM, hf.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8), text_batch())


def gemma3():
    config = hf.Gemma3TextConfig(**SMALL, num_key_value_heads=2, head_dim=8, sliding_window=8)
    return make(hf.Gemma3ForCausalLM, config, text_batch())


def phi3():
    return make(hf.Phi3ForCausalLM, hf.Phi3Config(**SMALL, **TOKENS, num_key_value_heads=2), text_batch())


def bloom():
    config = hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)
    return make(hf.BloomForCausalLM, config, padded_batch())


def deberta():
    config = hf.DebertaV2Config(**SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"])
    return make(hf.DebertaV2ForMaskedLM, config, padded_batch())


def bart():
    config = hf.BartConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        **TOKENS,
    )
    return make(hf.BartForConditionalGeneration, config, padded_batch())


def whisper():
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=20,
        max_target_positions=32,
        **TOKENS,
    )
    batch = {"input_features": torch.randn(3, 8, 40).double(), "labels": tokens()}
    return make(hf.WhisperForConditionalGeneration, config, batch)


def swin():
    config = hf.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=5,
    )
    return make(hf.SwinForImageClassification, config, image_batch())


def clip():
    text = {**SMALL, **TOKENS}
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    }
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    batch = {"input_ids": tokens(), "pixel_values": torch.randn(3, 3, 32, 32).double(), "return_loss": True}
    return make(hf.CLIPModel, config, batch)


def mamba():
    config = hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8)
    return make(hf.MambaForCausalLM, config, text_batch())


def wav2vec2():
    config = hf.Wav2Vec2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        conv_dim=[16, 16],
        conv_stride=[4, 4],
        conv_kernel=[8, 8],
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        apply_spec_augment=False,
        ctc_loss_reduction="mean",
    )
    batch = {"input_values": torch.randn(2, 800).double(), "labels": torch.randint(3, VOCABULARY, (2, 6))}
    return make(hf.Wav2Vec2ForCTC, config, batch)


def opt():
    config = hf.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
    )
    return make(hf.OPTForCausalLM, config, padded_batch())


def roberta():
    return make(hf.RobertaForMaskedLM, hf.RobertaConfig(**SMALL, pad_token_id=0), padded_batch())


def albert():
    return make(hf.AlbertForMaskedLM, hf.AlbertConfig(**SMALL, embedding_size=16), padded_batch())


def gpt_neox():
    return make(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**SMALL), padded_batch())


def falcon():
    config = hf.FalconConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    return make(hf.FalconForCausalLM, config, padded_batch())


def convnext():
    config = hf.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], num_labels=5, image_size=32)
    return make(hf.ConvNextForImageClassification, config, image_batch())


def segformer():
    config = hf.SegformerConfig(
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=16,
        num_labels=5,
    )
    batch = {"pixel_values": torch.randn(2, 3, 64, 64).double(), "labels": torch.randint(0, 5, (2, 64, 64))}
    return make(hf.SegformerForSemanticSegmentation, config, batch)


def distilbert():
    config = hf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=32, hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=64
    )
    return make(hf.DistilBertForMaskedLM, config, padded_batch())


def xlnet():
    config = hf.XLNetConfig(vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=48, num_labels=3)
    return make(
        hf.XLNetForSequenceClassification, config, {"input_ids": tokens(), "labels": torch.tensor([0, 1, 2])}
    )


def marian():
    config = hf.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
        forced_eos_token_id=2,
    )
    return make(hf.MarianMTModel, config, padded_batch())


def qwen3_5():
    config = hf.Qwen3_5TextConfig(
        **SMALL | {"num_hidden_layers": 4},
        num_key_value_heads=2,
        head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        pad_token_id=0,
    )
    return make(hf.Qwen3_5ForCausalLM, config, text_batch())


def recurrent_gemma():
    config = hf.RecurrentGemmaConfig(
        **SMALL | {"num_hidden_layers": 3},
        num_key_value_heads=1,
        lru_width=32,
        attention_window_size=8,
        head_dim=8,
    )
    return make(hf.RecurrentGemmaForCausalLM, config, text_batch())


def doge():
    config = hf.DogeConfig(**SMALL, num_key_value_heads=2, pad_token_id=0)
    return make(hf.DogeForCausalLM, config, text_batch())


JUDGED = [gpt2, llama, bert, t5, vit, resnet, mixtral]
# Nobody changed a line for these.
UNPREPARED = [opt, roberta, albert, gpt_neox, falcon, convnext, segformer, distilbert, xlnet, marian]
# Phi-3, Whisper and Wav2Vec2 found faults, which are mended; so did the last three, whose kernels lay their
# results out in other strides than were recorded.
OTHERS = [qwen3, gemma3, phi3, bloom, deberta, bart, whisper, swin, clip, mamba, wav2vec2]
OTHERS += [qwen3_5, recurrent_gemma, doge]
