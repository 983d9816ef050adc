"""The next letter by a small transformer, of which LoRA alone is trained: `sordino init DIR --task lora:Lora`."""

from dataclasses import dataclass

import numpy as np
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from sordino import BackboneOptions, TorchTask

LETTERS = " abcdefghijklmnopqrstuvwxyz'"
LENGTH = 64


def transformer() -> LlamaForCausalLM:
    """190,176 parameters, not trained yet: `prepare.py` trains them."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(LETTERS), hidden_size=96, intermediate_size=192, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=LENGTH, use_cache=False, attn_implementation="eager",
        )
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options(BackboneOptions):
    backbone: str = "plain_english.safetensors"
    rank: int = 2
    initial_seed: int = 0


class Lora(TorchTask):
    Options = Options
    example_shape = (LENGTH,)
    example_dtype = np.int32
    classes = len(LETTERS)

    def module(self):
        model = transformer()
        model.load_state_dict(self.backbone(), assign=True)
        adapters = LoraConfig(r=self.options.rank, lora_alpha=16, target_modules=["q_proj", "v_proj"])
        return Scores(get_peft_model(model, adapters))

    def check(self, data):
        if data.features.shape != data.labels.shape or data.features.shape[1:] != (LENGTH,):
            raise ValueError(f"examples must be {LENGTH} numbers of letters, with as many labels")


class Scores(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, letters):
        return self.model(input_ids=letters.long()).logits
