"""Step-3.5 written down once more, in NumPy and float64, with no cache: the law for what chained heads compute.

Everything is computed from the tokens alone, each time anew. The rows of head j in a round that starts after
`committed` tokens: row p < L + 1 holds token p and the target's hidden state of p - 1 (zeros before the first); row
L + i holds the i-th draft and the hidden state that head i - 1 drafted it from, for 1 <= i <= j.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.models.step3_5 import FULL_ATTENTION, LayerConfig, Step35Config


class Draft(NamedTuple):
    """What one head drafts, from which logits [V] and which hidden state [D]."""

    token: int
    logits: np.ndarray
    hidden: np.ndarray


def trunk_hidden(config: Step35Config, params: Any, tokens: Sequence[int]) -> np.ndarray:
    """The target's hidden states before its final norm, [T, D]."""
    own = params["target"]
    x = _weight(own["embed"])[list(tokens)]
    for index, layer in enumerate(config.layers):
        x = _layer(config, layer, own[f"layers_{index}"], own, x)
    return x


def trunk_logits(config: Step35Config, params: Any, hidden: np.ndarray) -> np.ndarray:
    own = params["target"]
    return _norm(config, own["norm"], hidden) @ _weight(own["lm_head"]).T


def draft_round(
    config: Step35Config, params: Any, committed: Sequence[int], pending: int, heads: int, forced: Sequence[int] = ()
) -> list[Draft]:
    """The drafts of a round; with `forced`, later heads see these tokens instead of what earlier heads drafted."""
    target = trunk_hidden(config, params, committed)
    rows = np.concatenate([np.zeros((1, config.width)), target])
    tokens, drafts = [*committed, pending], []
    for index in range(heads):
        own, shared = params["mtp"][f"heads_{index}"], params["target"]
        head = config.heads[index]
        embedded = _weight((own if head.own_embedding else shared)["embed"])[tokens]
        pair = [_norm(config, own["enorm"], embedded), _norm(config, own["hnorm"], rows)]
        x = np.concatenate(pair, axis=-1) @ _weight(own["eh_proj"]).T
        hidden = _layer(config, head.layer, own["block"], shared, x)[-1]
        normed = _norm(config, (own if head.own_norm else shared)["norm"], hidden)
        logits = _weight((own if head.own_output else shared)["lm_head"]) @ normed
        drafts.append(Draft(int(logits.argmax()), logits, hidden))
        tokens = [*tokens, forced[index] if forced else drafts[-1].token]
        rows = np.concatenate([rows, hidden[None]])
    return drafts


def _weight(part: Any) -> np.ndarray:
    return np.asarray(part["weight"], np.float64)


def _norm(config: Step35Config, part: Any, x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + config.norm_eps) * _weight(part)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _layer(config: Step35Config, layer: LayerConfig, own: Any, shared: Any, x: np.ndarray) -> np.ndarray:
    x = x + _attention(config, layer, own["attention"], shared, _norm(config, own["attn_norm"], x))
    normed = _norm(config, own["mlp_norm"], x)
    return x + (_moe(config, layer, own["moe"], normed) if layer.sparse else _mlp(layer.mlp_limit, own["mlp"], normed))


def _attention(config: Step35Config, layer: LayerConfig, own: Any, shared: Any, x: np.ndarray) -> np.ndarray:
    kind, length, width = config.attention(layer), len(x), config.head_width
    frequencies = kind.rope_theta ** (-np.arange(0, kind.rope_width, 2) / kind.rope_width)
    if layer.attention == FULL_ATTENTION and config.rope_factors:
        frequencies = frequencies / np.asarray(shared["rope_factors"], np.float64)
    angle = np.arange(length)[:, None] * frequencies
    back = np.arange(length)[:, None] - np.arange(length)
    seen = (back >= 0) & ((layer.attention == FULL_ATTENTION) | (back < config.window))

    def project(name: str) -> np.ndarray:
        return (x @ _weight(own[name]).T).reshape(length, -1, width)

    def rotate(heads: np.ndarray) -> np.ndarray:
        first, second, rest = np.split(heads, [len(frequencies), 2 * len(frequencies)], axis=-1)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    q = rotate(_norm(config, own["q_norm"], project("q_proj")))
    k = rotate(_norm(config, own["k_norm"], project("k_proj")))
    v, gate = project("v_proj"), _sigmoid(x @ _weight(own["gate_proj"]).T)
    out = np.empty_like(q)
    for head in range(kind.num_heads):
        group = head // (kind.num_heads // kind.num_kv_heads)
        scores = np.where(seen, q[:, head] @ k[:, group].T / np.sqrt(width), -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, group] * gate[:, head, None]
    return out.reshape(length, -1) @ _weight(own["o_proj"]).T


def _gated(limit: float, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    gate = gate * _sigmoid(gate)
    return np.minimum(gate, limit) * np.clip(up, -limit, limit) if limit else gate * up


def _mlp(limit: float, own: Any, x: np.ndarray) -> np.ndarray:
    gate, up, down = (_weight(own[f"{name}_proj"]) for name in ("gate", "up", "down"))
    return _gated(limit, x @ gate.T, x @ up.T) @ down.T


def _moe(config: Step35Config, layer: LayerConfig, own: Any, x: np.ndarray) -> np.ndarray:
    assert config.moe is not None
    gate, up, down = (np.asarray(own[f"experts_{name}"], np.float64) for name in ("gate", "up", "down"))
    out = _mlp(layer.mlp_limit, own["shared"], x)
    for row, vector in enumerate(x):
        scores = _sigmoid(_weight(own["router"]) @ vector)
        bias = np.asarray(own["router_bias"], np.float64) if config.moe.selection_bias else 0
        chosen = np.argsort(scores + bias)[-config.moe.experts_per_token :]
        total = scores[chosen].sum() if config.moe.normalize else 1
        for expert in chosen:
            hidden = _gated(layer.expert_limit, gate[expert] @ vector, up[expert] @ vector)
            out[row] += config.moe.scale * scores[expert] / total * (down[expert] @ hidden)
    return out
