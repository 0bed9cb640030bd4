"""The Gemma 4 assistant: a small model that reads its target's caches instead of keeping its own.

One step maps (embedding of a token by the target, hidden state h of the target's width) to logits and the next h. The
first step of a round takes the pending token and the target's final hidden state of the token before it; the others
take the last draft and the h that came with it. All steps of a round share one rotary position, that of the pending
token, and see what the target has committed: the target's last sliding and last full cache up to the token before the
pending one, whose own entry is not there yet. A sliding layer sees as many entries as its window has.

Sources: transformers `models/gemma4_assistant/modeling_gemma4_assistant.py` and
`SinglePositionMultiTokenCandidateGenerator` in `generation/candidate_generator.py`; llama.cpp
`src/models/gemma4-assistant.cpp`. transformers counts windows from the last cached entry and takes one more, llama.cpp
counts from the pending token: their sliding layers see an entry more and an entry less than here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax.layers.linear import Embedding, GatheredLinear, Linear
from specjax.layers.norm import RMSNorm
from specjax.mesh.columns import own_columns
from specjax.models.gemma4.assistant_config import CentroidHead, Gemma4AssistantConfig, check_fit
from specjax.models.gemma4.config import Gemma4Config
from specjax.models.gemma4.modules import Layer
from specjax.models.gemma4.target import Gemma4Target
from specjax.models.parts.apply import apply, in_device_memory
from specjax.models.parts.chain import draft_chain
from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import (
    Choice,
    ChooseDraft,
    Drafted,
    FeatureRequest,
    Features,
    FileDrafter,
    KeepGoing,
    Params,
    Proposal,
    Target,
)
from specjax.state import KVCache, KVTypes, Part, SequenceState, Shift


class AssistantBlock(nn.Module):
    """Projection of the pair, layers, final norm, projection to the next hidden state, and the head."""

    config: Gemma4AssistantConfig

    def setup(self) -> None:
        c = self.config
        self.pre_projection = GatheredLinear(c.width)
        self.layers: list[Any] = [Layer(kind) for kind in c.layer_kinds]
        self.norm = RMSNorm(c.norm_eps)
        self.post_projection = GatheredLinear(c.target_width)
        self.embed = Embedding(c.vocab_size, c.width)
        if c.centroids is not None:
            self.centroids = Centroids(c.centroids, c.vocab_size)

    def __call__(
        self, pair: Float[Array, "B T 2*target"], committed: Int[Array, "B T"], caches: tuple[KVCache, ...]
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T target"]]:
        """One step, each row after so many committed tokens; `caches` has one for each layer.

        Returns:
            The normed hidden rows that the head reads, and the hidden states for the next step.
        """
        x = self.pre_projection(pair)
        for layer, cache in zip(self.layers, caches, strict=True):
            x, _ = layer(x, None, committed, committed - 1, committed >= 0, cache)
        return self.project(x)

    def project(self, x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], Float[Array, "B T target"]]:
        """From the last layer's output: the normed rows for the head, and the hidden states for the next step."""
        normed = self.norm(x)
        return normed, self.post_projection(normed)

    def logits(self, normed: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of the whole vocabulary."""
        return self.embed.unembed(normed)

    def centroid_fit(self, normed: Float[Array, "... D"]) -> Float[Array, "... centroids"]:
        """How well each centroid fits, float32; only with a centroid head."""
        return self.centroids.fit(normed)

    def scores(self, normed: Float[Array, "B D"]) -> tuple[Float[Array, "B M"], Int[Array, "B Ma"] | None]:
        """Float32 logits of M tokens, and which tokens these are; None: the whole vocabulary in order."""
        if self.config.centroids is None:
            return self.logits(normed), None
        tokens = self.centroids(normed)
        return own_columns(self.embed.scores(normed, tokens), -jnp.inf), tokens

    def ends(self, pair: Float[Array, "B 1 2*target"]) -> Any:
        """Everything but the layers, to initialise it."""
        normed, hidden = self.project(self.pre_projection(pair))
        return self.scores(normed[:, 0]), hidden


class Centroids(nn.Module):
    """Which tokens a hidden row is scored against."""

    config: CentroidHead
    vocab_size: int

    def setup(self) -> None:
        self.token_ordering = self.param("token_ordering", _any_order, (self.vocab_size,), jnp.int32)
        self.proj = Linear(self.config.num_centroids, jnp.float32)

    def fit(self, normed: Float[Array, "... D"]) -> Float[Array, "... centroids"]:
        """How well each centroid fits."""
        return self.proj(normed)

    def __call__(self, normed: Float[Array, "B D"]) -> Int[Array, "B M"]:
        """The tokens of the best centroids' groups."""
        groups = (self.config.num_centroids, self.vocab_size // self.config.num_centroids)
        _, best = jax.lax.top_k(self.fit(normed), self.config.selected)
        return jnp.take(self.token_ordering.reshape(groups), best, axis=0).reshape(normed.shape[0], -1)


def _any_order(key: Array, shape: tuple[int, ...], dtype: Any) -> Int[Array, "V"]:
    return jax.random.permutation(key, shape[0]).astype(dtype)


@struct.dataclass
class AssistantState(Part):
    """The target's final hidden state of the last committed token, [B, D] float32; zeros before the first token."""

    hidden: Float[Array, "B D"]

    @property
    def cannot_shift(self) -> None:
        """Nothing is in the way: it knows no positions."""
        return None

    def shift(self, shift: Shift) -> AssistantState:
        """The last token stays, and so does its hidden state."""
        del shift
        return self


@struct.dataclass
class AssistantWindow:
    """A state, and the hidden states of a verified window, one of which will be kept."""

    state: AssistantState
    hidden: Float[Array, "B T D"]

    def commit(self, n: Int[Array, "B"]) -> AssistantState:
        """Keep the hidden state of the n-th token; a row with n = 0 keeps what it had."""
        last = jnp.take_along_axis(self.hidden, jnp.maximum(n - 1, 0)[:, None, None], axis=1)[:, 0]
        return AssistantState(jnp.where((n == 0)[:, None], self.state.hidden, last.astype(jnp.float32)))


@dataclass(frozen=True)
class Gemma4Assistant(BaseDrafter):
    """See `specjax.models.protocol.Drafter`. Drafts for one target, whose embedding and caches it reads."""

    target_config: Gemma4Config
    config: Gemma4AssistantConfig

    def shard(self, parts: int) -> Gemma4Assistant:
        """Split as the target is, whose caches it reads."""
        if parts == 1:
            return self
        return Gemma4Assistant(self.target_config.shard(parts), self.config.shard(parts))

    @property
    def request(self) -> FeatureRequest:
        """The hidden states after the target's final norm."""
        return FeatureRequest(final_hidden=True)

    def head_paths(self) -> tuple[str, ...]:
        if (centroids := self.config.centroids) is not None:
            raise ValueError(
                f"the assistant's centroid head scores the tokens of {centroids.selected} of"
                f" {centroids.num_centroids} groups only, and looks them up in the whole table"
            )
        return ("mtp.embed.weight",)

    def init_state(
        self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes = KVTypes()
    ) -> AssistantState:
        """A zero row per sequence."""
        del capacity, rows, chunk, kv_types
        return AssistantState(jnp.zeros((batch, self.target_config.width), jnp.float32))

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: AssistantState,
        length: Int[Array, "B"],
    ) -> AssistantState:
        """Keep the hidden state of each row's last token."""
        del params, length
        return self.observe(tokens, features, state).commit(n_valid)

    def step(
        self, params: Params, token: Int[Array, "B"], hidden: Float[Array, "B D"], state: SequenceState
    ) -> tuple[tuple[Float[Array, "B M"], Int[Array, "B Ma"] | None], Float[Array, "B D"]]:
        """Scores of the token after `token` (see `AssistantBlock.scores`), and the hidden state for the next step."""
        own = AssistantBlock(self.config)
        embedded = Gemma4Target(self.target_config).embed(params, token[:, None])
        pair = jnp.concatenate([embedded, hidden[:, None].astype(embedded.dtype)], axis=-1)
        caches = tuple(state.layers[self.target_config.last_cache(kind)] for kind in self.config.layer_types)
        normed, hidden = apply(own, params["mtp"], pair, state.length[:, None], caches)
        return apply(own, params["mtp"], normed[:, 0], method="scores"), hidden[:, 0].astype(jnp.float32)

    def propose(
        self,
        params: Params,
        pending: Int[Array, "B"],
        state: SequenceState,
        *,
        num_drafts: int,
        choose: ChooseDraft,
        keep_going: KeepGoing,
    ) -> Proposal:
        """One step per draft, all after the same `state.length` committed tokens."""
        near = jax.tree.map(in_device_memory, params)

        def first(caches: tuple[()]) -> tuple[Choice, Float[Array, "B D"], tuple[()]]:
            (logits, tokens), hidden = self.step(near, pending, state.drafter.hidden, state)
            return choose(logits, state.length + 1, tokens), hidden, caches

        def step(
            index: Int[Array, ""], before: Drafted, hidden: Float[Array, "B D"], caches: tuple[()]
        ) -> tuple[Choice, Float[Array, "B D"], tuple[()]]:
            (logits, tokens), hidden = self.step(params, before.token, hidden, state)
            return choose(logits, state.length + index + 1, tokens, before), hidden, caches

        drafts, _ = draft_chain(first, step, (), num_drafts=num_drafts, keep_going=keep_going)
        return Proposal(*drafts, state=state.drafter)

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: AssistantState) -> AssistantWindow:
        """The hidden state of the last accepted one of the verified rows will be kept."""
        del tokens
        assert features.final_hidden is not None
        return AssistantWindow(state, features.final_hidden)

    def hidden_norm(self, state: AssistantState) -> Float[Array, "B"]:
        """Of the last committed token."""
        return jnp.linalg.norm(state.hidden, axis=-1)


def from_file(config: Gemma4AssistantConfig) -> FileDrafter:
    """How an assistant drafts for a target."""

    def attach(target: Target) -> Gemma4Assistant:
        if not isinstance(target, Gemma4Target):
            raise ValueError(f"a Gemma 4 assistant drafts for Gemma 4 targets, not for a {type(target).__name__}")
        check_fit(target.config, config)
        return Gemma4Assistant(target.config, config)

    return FileDrafter(part="mtp", under=None, own_vocabulary=False, attach=attach)
