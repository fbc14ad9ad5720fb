# SPDX-License-Identifier: Apache-2.0
"""One rank of test_parallel.py's job: Hugging Face's models in stages, unmodified, against eager PyTorch."""

import copy
import pathlib

import families
import torch
import transformers as hf

import shoal

STEPS = 3


def t5():
    config = hf.T5Config(
        vocab_size=families.VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=3,
        num_heads=4,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    return hf.T5ForConditionalGeneration(families.without_dropout(config))


def gpt2():
    config = hf.GPT2Config(
        vocab_size=families.VOCABULARY,
        n_embd=32,
        n_layer=4,
        n_head=4,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    return hf.GPT2LMHeadModel(families.without_dropout(config))


def llama():
    return hf.LlamaForCausalLM(hf.LlamaConfig(**families.SMALL, num_key_value_heads=2))


def bert():
    return hf.BertForMaskedLM(families.without_dropout(hf.BertConfig(**families.SMALL)))


def batch_of(step):
    torch.manual_seed(step)
    ids = torch.randint(3, families.VOCABULARY, (8, 12))
    return {"input_ids": ids, "labels": ids.roll(1, 1)}


def loss_of(model, batch):
    """In float64 to the end."""
    inputs = {"input_ids": batch["input_ids"]}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = batch["labels"].roll(1, 1)
    logits = model(**inputs).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def train(make, parallelism):
    torch.manual_seed(1)
    whole = make().double()
    ours = copy.deepcopy(whole)
    eager = torch.optim.AdamW(whole.parameters(), lr=0.01)
    trainer = shoal.Trainer(
        ours, torch.optim.AdamW(ours.parameters(), lr=0.01), loss_of, clip_norm=0.5, parallelism=parallelism
    )
    for step in range(STEPS):
        batch = batch_of(step)
        eager.zero_grad()
        loss = loss_of(whole, batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
        eager.step()
        rows = shoal.samples_of(8, parallelism)
        result = trainer.step({name: tensor[rows] for name, tensor in batch.items()})
        assert abs(result.loss - loss.item()) < 1e-9, (step, result.loss, loss.item())
        assert abs(result.grad_norm - norm.item()) < 1e-9 * norm.item(), (step, result.grad_norm, norm.item())
    evaluated = trainer.evaluate(batch_of(99)) if parallelism.shard == 1 else None
    trainer.materialize()
    for (name, one), other in zip(ours.named_parameters(), whole.parameters(), strict=True):
        # Adam divides by gradients: where they are noise, so is what it makes of them.
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8, msg=name)
    if evaluated is not None:
        whole.eval()
        torch.testing.assert_close(evaluated.loss, loss_of(whole, batch_of(99)).item(), rtol=1e-6, atol=0)


ranks = shoal.world_size()
for make in (gpt2, llama, t5, bert):
    train(make, shoal.Parallelism(pipeline=ranks, microbatches=4))
    train(
        make,
        shoal.Parallelism(
            pipeline=2,
            shard=ranks // 2,
            zero_stage=3 if ranks > 2 else 0,
            schedule=str(pathlib.Path(__file__).with_name("schedule.csv")),
        ),
    )
    if shoal.rank() == 0:
        print(f"{make.__name__} in stages: equal")
