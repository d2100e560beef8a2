"""Language models of Hugging Face transformers, from configurations: no weights, and nothing from the hub.

Names that end in `-eager` split attention into products and a softmax, as transformers did before fused
kernels. Batches are dense, without padding. Experts get equal shares of the tokens, up to their capacity.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.collections.entry import Entry, Maker
from profiling.collections.lazy import lazy_weights
from profiling.training import Phase, TrainingJob

_BERT = (512, 128, 256, 384)
_GPT2 = (1024, 256, 512)


@dataclass(frozen=True)
class _Network:
    """Class and configuration of a network, both by their names in transformers."""

    model: str
    config: str
    lengths: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    has_eager: bool = False


def _bert(width: int, layers: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "intermediate_size": 4 * width,
    }


def _gpt2(width: int, layers: int) -> dict[str, Any]:
    return {"n_embd": width, "n_layer": layers, "n_head": width // 64}


def _roberta(width: int, layers: int) -> dict[str, Any]:
    return {**_bert(width, layers), "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}


def _opt(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "ffn_dim": 4 * width,
        "word_embed_proj_dim": width,
    }


_NETWORKS: dict[str, _Network] = {
    "bert-base": _Network("BertForSequenceClassification", "BertConfig", _BERT, _bert(768, 12), True),
    "bert-large": _Network("BertForSequenceClassification", "BertConfig", _BERT, _bert(1024, 24), True),
    "roberta-base": _Network("RobertaForSequenceClassification", "RobertaConfig", _BERT, _roberta(768, 12)),
    "roberta-large": _Network("RobertaForSequenceClassification", "RobertaConfig", _BERT, _roberta(1024, 24)),
    "distilbert-base": _Network("DistilBertForSequenceClassification", "DistilBertConfig", _BERT),
    "gpt2": _Network("GPT2LMHeadModel", "GPT2Config", _GPT2, _gpt2(768, 12), True),
    "gpt2-medium": _Network("GPT2LMHeadModel", "GPT2Config", _GPT2, _gpt2(1024, 24), True),
    "gpt2-large": _Network("GPT2LMHeadModel", "GPT2Config", _GPT2, _gpt2(1280, 36), True),
    # Its 25 heads are 64 wide, too.
    "gpt2-xl": _Network("GPT2LMHeadModel", "GPT2Config", _GPT2, _gpt2(1600, 48), True),
    "opt-125m": _Network("OPTForCausalLM", "OPTConfig", (2048, 512, 1024), _opt(768, 12, 12)),
    "opt-1.3b": _Network("OPTForCausalLM", "OPTConfig", (2048, 512, 1024), _opt(2048, 24, 32)),
    "llama-2-7b": _Network("LlamaForCausalLM", "LlamaConfig", (4096, 512, 1024, 2048)),
    "t5-small": _Network("T5ForConditionalGeneration", "T5Config", (512, 128)),
    "t5-base": _Network(
        "T5ForConditionalGeneration",
        "T5Config",
        (512, 128),
        {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    ),
    "switch-xl-4": _Network(
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        (512, 2048),
        {
            "d_model": 1024,
            "d_ff": 16384,
            "d_kv": 128,
            "num_heads": 32,
            "num_layers": 24,
            "num_decoder_layers": 24,
            "num_sparse_encoder_layers": 12,
            "num_sparse_decoder_layers": 12,
            "num_experts": 4,
            "expert_capacity": 64,
        },
    ),
}


def entries() -> Iterator[Entry]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for name, network in _NETWORKS.items():
        family = network.config.removesuffix("Config").lower()
        yield Entry(name, family, network.lengths, partial(_makers, network, "sdpa"))
        if network.has_eager:
            yield Entry(f"{name}-eager", family, network.lengths, partial(_makers, network, "eager"))


def _makers(network: _Network, attention: str, length: int) -> Iterator[Maker]:
    import transformers  # type: ignore[import-not-found]

    config = getattr(transformers, network.config)(**network.options)
    if network.model.startswith("SwitchTransformers"):
        _dispatch_evenly()
    elif not network.model.startswith("T5"):
        config._attn_implementation = attention
    # Networks that compute position tables when they are built do so on the CPU.
    for device in ("meta", "cpu"):
        with lazy_weights(device):
            model = getattr(transformers, network.model)(config).to("meta")
        model.train()
        yield partial(_job, model, length, config)


def _dispatch_evenly() -> None:
    """Give each expert the same number of tokens, at most its capacity, instead of routing by value."""
    from transformers.models.switch_transformers import modeling_switch_transformers as switch

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        samples, length, width = hidden_states.shape
        _, weights, _ = self.router(hidden_states)
        count = samples * min(length // self.router.num_experts, self.router.expert_capacity)
        hidden_states, weights = hidden_states.view(-1, width), weights.view(-1, 1)
        rows = torch.empty(count, dtype=torch.int64, device=hidden_states.device)
        out = torch.zeros_like(hidden_states)
        for expert in self.experts.values():
            out.index_add_(0, rows, expert(hidden_states[rows]) * weights[rows])
        return out.reshape(samples, length, width)

    switch.SwitchTransformersSparseMLP.forward = forward


def _job(model: nn.Module, length: int, config: Any, batch_size: int, precision: str) -> TrainingJob:
    with torch.device("meta"):
        tokens = torch.empty(batch_size, length, dtype=torch.int64)
        batch = {"input_ids": tokens}
        if config.is_encoder_decoder:
            batch["decoder_input_ids"] = torch.empty_like(tokens)
        else:
            batch["attention_mask"] = torch.empty_like(tokens)
        is_classifier = type(model).__name__.endswith("SequenceClassification")
        batch["labels"] = (
            torch.empty(batch_size, dtype=torch.int64) if is_classifier else torch.empty_like(tokens)
        )
    loss: Callable[..., Tensor] = _loss
    return TrainingJob(model, batch, (Phase(loss),), batch_size=batch_size, precision=precision)


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    cached = {} if "Classification" in type(model).__name__ else {"use_cache": False}
    logits = model(**inputs, **cached).logits
    return F.cross_entropy(logits.flatten(0, -2), batch["labels"].flatten())
