"""Tensor names of the Qwen3.5 family in GGUF files and in Hugging Face checkpoints.

Sources: llama.cpp `gguf-py/gguf/constants.py`, `src/models/qwen35*.cpp` and `conversion/qwen.py`; transformers
`models/qwen3_5*/modeling_*.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping

from checkpoints.mapping import RuleTable
from checkpoints.rule import Copy, Rule, Split, Stack
from checkpoints.transforms import IDENTITY, NEGATIVE_EXP, PLUS_ONE, Shape, Transform, tile_heads
from checkpoints.tree import flatten
from specjax.models.qwen3_5.config import FULL_ATTENTION, Qwen35Config
from specjax.models.qwen3_5.parameters import parameter_shapes

_Names = tuple[tuple[str, str, Transform], ...]
"""(tensor name within its block, parameter path within its block, transform)"""

_GGUF_COMMON: _Names = (
    ("attn_norm.weight", "attn_norm.weight", IDENTITY),
    ("post_attention_norm.weight", "mlp_norm.weight", IDENTITY),
)
_GGUF_ATTENTION: _Names = (
    ("attn_q.weight", "attention.q_proj.weight", IDENTITY),
    ("attn_k.weight", "attention.k_proj.weight", IDENTITY),
    ("attn_v.weight", "attention.v_proj.weight", IDENTITY),
    ("attn_output.weight", "attention.o_proj.weight", IDENTITY),
    ("attn_q_norm.weight", "attention.q_norm.weight", IDENTITY),
    ("attn_k_norm.weight", "attention.k_norm.weight", IDENTITY),
)
_GGUF_DELTA_NET: _Names = (
    ("attn_qkv.weight", "delta_net.qkv_proj.weight", IDENTITY),
    ("attn_gate.weight", "delta_net.z_proj.weight", IDENTITY),
    ("ssm_beta.weight", "delta_net.beta_proj.weight", IDENTITY),
    ("ssm_alpha.weight", "delta_net.alpha_proj.weight", IDENTITY),
    ("ssm_conv1d.weight", "delta_net.conv.weight", IDENTITY),
    ("ssm_a", "delta_net.a", IDENTITY),
    ("ssm_dt.bias", "delta_net.dt_bias", IDENTITY),
    ("ssm_norm.weight", "delta_net.norm.weight", IDENTITY),
    ("ssm_out.weight", "delta_net.out_proj.weight", IDENTITY),
)
_GGUF_MLP: _Names = (
    ("ffn_gate.weight", "mlp.gate_proj.weight", IDENTITY),
    ("ffn_up.weight", "mlp.up_proj.weight", IDENTITY),
    ("ffn_down.weight", "mlp.down_proj.weight", IDENTITY),
)
_GGUF_MOE: _Names = (
    ("ffn_gate_inp.weight", "moe.router.weight", IDENTITY),
    ("ffn_down_exps.weight", "moe.experts_down", IDENTITY),
    ("ffn_gate_shexp.weight", "moe.shared.gate_proj.weight", IDENTITY),
    ("ffn_up_shexp.weight", "moe.shared.up_proj.weight", IDENTITY),
    ("ffn_down_shexp.weight", "moe.shared.down_proj.weight", IDENTITY),
    ("ffn_gate_inp_shexp.weight", "moe.shared_gate.weight", IDENTITY),
)
_GGUF_IGNORED = {r"rope_freqs\.weight": "rotary frequencies follow from the config"}

GGUF_MTP_EMBEDDING = "blk.{}.nextn.embed_tokens.weight"
GGUF_MTP_OUTPUT = "blk.{}.nextn.shared_head_head.weight"
GGUF_MTP_NORM = "blk.{}.nextn.shared_head_norm.weight"
"""Optional tensors of the MTP block; the block's number stands in the braces."""


def gguf_rules(config: Qwen35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file.

    Args:
        config: the model.
        names: the file's tensor names: they decide between fused and separate expert tensors. Empty when writing.
    """

    def moe(block: str, path: str) -> Iterator[Rule]:
        yield from _block_rules(_GGUF_MOE, block, path)
        gate_up = (f"{path}moe.experts_gate", f"{path}moe.experts_up")
        if f"{block}ffn_gate_up_exps.weight" in names:
            yield Split(f"{block}ffn_gate_up_exps.weight", gate_up, axis=1)
        else:
            yield Copy(f"{block}ffn_gate_exps.weight", gate_up[0])
            yield Copy(f"{block}ffn_up_exps.weight", gate_up[1])

    def layer(block: str, path: str, kind: str) -> Iterator[Rule]:
        yield from _block_rules(_GGUF_COMMON, block, path)
        yield from _block_rules(_GGUF_ATTENTION if kind == FULL_ATTENTION else _GGUF_DELTA_NET, block, path)
        yield from _block_rules(_GGUF_MLP, block, path) if config.moe is None else moe(block, path)

    def rules() -> Iterator[Rule]:
        yield Copy("token_embd.weight", "target.embed.weight")
        for i, kind in enumerate(config.layer_types):
            yield from layer(f"blk.{i}.", f"target.layers_{i}.", kind)
        yield Copy("output_norm.weight", "target.norm.weight")
        if not config.tied_embeddings:
            yield Copy("output.weight", "target.lm_head.weight")
        if config.mtp_layers:
            i = config.num_layers
            yield from layer(f"blk.{i}.", "mtp.block.", FULL_ATTENTION)
            yield Copy(f"blk.{i}.nextn.enorm.weight", "mtp.enorm.weight")
            yield Copy(f"blk.{i}.nextn.hnorm.weight", "mtp.hnorm.weight")
            yield Copy(f"blk.{i}.nextn.eh_proj.weight", "mtp.eh_proj.weight")
            if config.mtp_own_norm:
                yield Copy(GGUF_MTP_NORM.format(i), "mtp.norm.weight")
            if config.mtp_own_embedding:
                yield Copy(GGUF_MTP_EMBEDDING.format(i), "mtp.embed.weight")
            if config.mtp_own_output:
                yield Copy(GGUF_MTP_OUTPUT.format(i), "mtp.lm_head.weight")

    return RuleTable(tuple(rules()), _GGUF_IGNORED, _shapes(config))


_HF_COMMON: _Names = (
    ("input_layernorm.weight", "attn_norm.weight", PLUS_ONE),
    ("post_attention_layernorm.weight", "mlp_norm.weight", PLUS_ONE),
)
_HF_ATTENTION: _Names = (
    ("self_attn.q_proj.weight", "attention.q_proj.weight", IDENTITY),
    ("self_attn.k_proj.weight", "attention.k_proj.weight", IDENTITY),
    ("self_attn.v_proj.weight", "attention.v_proj.weight", IDENTITY),
    ("self_attn.o_proj.weight", "attention.o_proj.weight", IDENTITY),
    ("self_attn.q_norm.weight", "attention.q_norm.weight", PLUS_ONE),
    ("self_attn.k_norm.weight", "attention.k_norm.weight", PLUS_ONE),
)
_HF_MLP: _Names = (
    ("mlp.gate_proj.weight", "mlp.gate_proj.weight", IDENTITY),
    ("mlp.up_proj.weight", "mlp.up_proj.weight", IDENTITY),
    ("mlp.down_proj.weight", "mlp.down_proj.weight", IDENTITY),
)
_HF_MOE: _Names = (
    ("mlp.gate.weight", "moe.router.weight", IDENTITY),
    ("mlp.shared_expert.gate_proj.weight", "moe.shared.gate_proj.weight", IDENTITY),
    ("mlp.shared_expert.up_proj.weight", "moe.shared.up_proj.weight", IDENTITY),
    ("mlp.shared_expert.down_proj.weight", "moe.shared.down_proj.weight", IDENTITY),
    ("mlp.shared_expert_gate.weight", "moe.shared_gate.weight", IDENTITY),
)
_HF_IGNORED = {
    r"(model\.)?visual\..*": "the vision tower; only the text model is loaded",
    r".*rotary_emb\.inv_freq": "rotary frequencies follow from the config",
}
HF_MTP_EMBEDDING = "mtp.embed_tokens.weight"
HF_MTP_OUTPUT = "mtp.lm_head.weight"
HF_MTP_NORM = "mtp.norm.weight"
"""Optional tensors of the MTP block."""


def _hf_delta_net(config: Qwen35Config) -> _Names:
    groups, width = config.linear_key_heads, config.linear_value_width
    per_group = config.linear_value_heads // groups
    queries_and_keys = 2 * groups * config.linear_key_width
    per_head = tile_heads(groups, per_group, 1, axis=0)
    channels = tile_heads(groups, per_group, width, axis=0, skip=queries_and_keys)
    taps = Transform(lambda x: x, lambda x: x, insert=(1,))
    return (
        ("linear_attn.in_proj_qkv.weight", "delta_net.qkv_proj.weight", channels),
        ("linear_attn.in_proj_z.weight", "delta_net.z_proj.weight", tile_heads(groups, per_group, width, axis=0)),
        ("linear_attn.in_proj_b.weight", "delta_net.beta_proj.weight", per_head),
        ("linear_attn.in_proj_a.weight", "delta_net.alpha_proj.weight", per_head),
        ("linear_attn.conv1d.weight", "delta_net.conv.weight", taps.then(channels)),
        ("linear_attn.A_log", "delta_net.a", NEGATIVE_EXP.then(per_head)),
        ("linear_attn.dt_bias", "delta_net.dt_bias", per_head),
        ("linear_attn.norm.weight", "delta_net.norm.weight", IDENTITY),
        ("linear_attn.out_proj.weight", "delta_net.out_proj.weight", tile_heads(groups, per_group, width, axis=1)),
    )


def hf_prefix(names: Collection[str]) -> str:
    """`model.` for the text-only classes, `model.language_model.` inside the conditional-generation ones."""
    nested = "model.language_model."
    return nested if any(name.startswith(nested) for name in names) else "model."


def hf_rules(config: Qwen35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors.

    Args:
        config: the model.
        names: the checkpoint's tensor names: they decide the prefix of the trunk, and between fused experts and one
            tensor per expert. Empty when writing (prefix `model.`, fused experts).
    """
    prefix, delta_net = hf_prefix(names), _hf_delta_net(config)

    def moe(block: str, path: str, num_experts: int) -> Iterator[Rule]:
        yield from _block_rules(_HF_MOE, block, path)
        experts = f"{block}mlp.experts."
        if f"{experts}0.gate_proj.weight" in names:
            for kind in ("gate", "up", "down"):
                sources = tuple(f"{experts}{e}.{kind}_proj.weight" for e in range(num_experts))
                yield Stack(sources, f"{path}moe.experts_{kind}")
        else:
            yield Split(f"{experts}gate_up_proj", (f"{path}moe.experts_gate", f"{path}moe.experts_up"), axis=1)
            yield Copy(f"{experts}down_proj", f"{path}moe.experts_down")

    def layer(block: str, path: str, kind: str) -> Iterator[Rule]:
        yield from _block_rules(_HF_COMMON, block, path)
        yield from _block_rules(_HF_ATTENTION if kind == FULL_ATTENTION else delta_net, block, path)
        if config.moe is None:
            yield from _block_rules(_HF_MLP, block, path)
        else:
            yield from moe(block, path, config.moe.num_experts)

    def rules() -> Iterator[Rule]:
        yield Copy(f"{prefix}embed_tokens.weight", "target.embed.weight")
        for i, kind in enumerate(config.layer_types):
            yield from layer(f"{prefix}layers.{i}.", f"target.layers_{i}.", kind)
        yield Copy(f"{prefix}norm.weight", "target.norm.weight", PLUS_ONE)
        if not config.tied_embeddings:
            yield Copy("lm_head.weight", "target.lm_head.weight")
        if config.mtp_layers:
            yield from layer("mtp.layers.0.", "mtp.block.", FULL_ATTENTION)
            yield Copy("mtp.pre_fc_norm_embedding.weight", "mtp.enorm.weight", PLUS_ONE)
            yield Copy("mtp.pre_fc_norm_hidden.weight", "mtp.hnorm.weight", PLUS_ONE)
            yield Copy("mtp.fc.weight", "mtp.eh_proj.weight")
            if config.mtp_own_norm:
                yield Copy(HF_MTP_NORM, "mtp.norm.weight", PLUS_ONE)
            if config.mtp_own_embedding:
                yield Copy(HF_MTP_EMBEDDING, "mtp.embed.weight")
            if config.mtp_own_output:
                yield Copy(HF_MTP_OUTPUT, "mtp.lm_head.weight")

    ignored: Mapping[str, str] = _HF_IGNORED
    if config.tied_embeddings:
        ignored = {**ignored, r"lm_head\.weight": "a second copy of the tied embedding table"}
    return RuleTable(tuple(rules()), ignored, _shapes(config))


def _block_rules(names: _Names, block: str, path: str) -> Iterator[Rule]:
    for source, parameter, transform in names:
        yield Copy(f"{block}{source}", f"{path}{parameter}", transform)


@functools.cache
def _shapes(config: Qwen35Config) -> Mapping[str, Shape]:
    return {path: tuple(leaf.shape) for path, leaf in flatten(parameter_shapes(config)).items()}
