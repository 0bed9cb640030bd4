"""Hyper-parameters of DFlash, DFlash 2 and DSpark drafters (GGUF architecture `dflash`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from specjax.models.parts.requirements import (
    require,
    require_draft_vocabulary,
    require_groups,
    require_pairs,
    require_target_layers,
)
from specjax.models.parts.split import Divisible

MARKOV_KINDS = ("vanilla", "gated", "rnn")
WINDOW_FROM = ("slot", "block")


@dataclass(frozen=True)
class MarkovHead:
    """A correction of a slot's logits by the token before it: DSpark.

    Attributes:
        rank: of the correction.
        kind: what it is a function of. "vanilla": the token; "gated": the token and the slot's hidden state; "rnn": all
            tokens and hidden states of the block so far.
    """

    rank: int
    kind: str = "vanilla"


@dataclass(frozen=True)
class Selector:
    """A choice among the most likely tokens of a slot, by the token before it: DFlash 2.

    Attributes:
        rank: of the products that score a pair of tokens.
        top_k: how many tokens of a slot are scored.
    """

    rank: int
    top_k: int


@dataclass(frozen=True)
class Convolution:
    """Causal convolutions over the slots of a block, around attention and MLP of each layer: DFlash 2.

    Attributes:
        kernel: taps.
        group: so many neighbouring channels share what a slot adds to the kernel.
    """

    kernel: int
    group: int


@dataclass(frozen=True)
class DFlashConfig(Divisible):
    """Layers that fill a block of masks in one pass, with the target's features among their keys and values.

    Attributes:
        vocab_size: V of the target.
        draft_vocab_size: the tokens that the drafter can draft.
        block_size: slots of a block, the pending token's included.
        mask_token: stands in the slots that are to be filled.
        target_layers: the layers of the target whose inputs are fused; L names the output of its last layer. Empty:
            the file does not say, and the usual three of the target are taken.
        width, mlp_width: D and F; D is also that of the target.
        num_heads, num_kv_heads, head_width: H, G, N.
        rope_width: how many dimensions of a head rotate.
        windows: how many positions each layer sees, None for all; one entry for each layer.
        causal: of each layer, whether a slot sees no later slots of its block.
        window_from: where a window is counted from, see `specjax.models.drafters.dflash.sight`.
        rope_theta: base of the rotary frequencies.
        norm_eps: epsilon of every RMSNorm.
        context_length: the longest sequence that the drafter was made for.
        from_anchor: the slot of the pending token drafts the first token after it, and each slot the next one. If not,
            that slot drafts nothing, and each other slot the token that stands there.
        markov, confidence, selector, convolution: further parts, None for those that the drafter lacks. `confidence`
            names what the head reads that says how sure a draft is: "hidden" states, or "both" them and the embedding
            of the token before, as the Markov head has it.
        embedding_scale: what rows of the embedding table are multiplied by.
        own_embedding, own_output: whether the file has an embedding table and an output head; else the target's are
            read.
        maps_tokens: whether the parameters hold which tokens those of the drafter are.

    Raises:
        ValueError: the numbers contradict each other.
    """

    vocab_size: int
    draft_vocab_size: int
    block_size: int
    mask_token: int
    target_layers: tuple[int, ...]
    width: int
    mlp_width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    rope_width: int
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    window_from: str = "slot"
    rope_theta: float = 1e4
    norm_eps: float = 1e-6
    context_length: int = 32768
    from_anchor: bool = False
    markov: MarkovHead | None = None
    confidence: str | None = None
    selector: Selector | None = None
    convolution: Convolution | None = None
    embedding_scale: float = 1.0
    own_embedding: bool = False
    own_output: bool = False
    maps_tokens: bool = False

    def __post_init__(self) -> None:
        require(self, len(self.windows) > 0, "windows is empty; a drafter has at least one layer")
        counts = f"windows has {len(self.windows)} entries and causal {len(self.causal)}"
        require(self, len(self.causal) == len(self.windows), f"{counts}; both have one for each layer")
        require_target_layers(self, self.target_layers)
        require_groups(self, self.num_heads, self.num_kv_heads)
        require_pairs(self, self.rope_width, self.head_width)
        known = f"window_from is {self.window_from!r}; known are {', '.join(WINDOW_FROM)}"
        require(self, self.window_from in WINDOW_FROM, known)
        require(self, self.num_drafts > 0, f"a block of {self.block_size} leaves nothing to draft")
        outside = f"mask_token is {self.mask_token}; the target has {self.vocab_size} tokens"
        require(self, 0 <= self.mask_token < self.vocab_size, outside)
        require_draft_vocabulary(self, self.draft_vocab_size, self.vocab_size, maps_tokens=self.maps_tokens)
        if self.markov is not None:
            known = f"a Markov head of the kind {self.markov.kind!r}; known are {', '.join(MARKOV_KINDS)}"
            require(self, self.markov.kind in MARKOV_KINDS, known)
        read = self.confidence
        require(self, read in (None, "hidden", "both"), f"confidence is {read!r}; known are None, 'hidden' and 'both'")
        reads = read != "both" or self.markov is not None
        require(self, reads, "the confidence head reads the Markov head's embeddings, and there is none")
        both = self.markov is None or self.selector is None
        require(self, both, "a drafter has a Markov head or a selector, not both")
        if self.selector is not None:
            top = f"a selector scores {self.selector.top_k} of {self.draft_vocab_size} tokens"
            require(self, 0 < self.selector.top_k <= self.draft_vocab_size, top)
        if self.convolution is not None:
            groups = f"groups of {self.convolution.group} channels do not divide {self.width}"
            require(self, self.width % self.convolution.group == 0, groups)

    def shard(self, parts: int) -> Self:
        """See `Divisible.shard`. There may be fewer KV heads than parts."""
        return self.divided(parts, "num_heads", padded=["mlp_width"], shared=["num_kv_heads"])

    @property
    def architecture(self) -> str:
        return "dflash"

    @property
    def mtp_layers(self) -> int:
        """Layers of the drafter, which is all there is."""
        return len(self.windows)

    @property
    def heads_itself(self) -> bool:
        """Whether its own output head gives its logits, or its own embedding table, as in llama.cpp."""
        return self.own_output or self.own_embedding

    @property
    def num_features(self) -> int:
        """How many layers of the target are fused."""
        return len(self.target_layers) or 3

    @property
    def num_drafts(self) -> int:
        """The most drafts that a block has."""
        return self.block_size if self.from_anchor else self.block_size - 1
