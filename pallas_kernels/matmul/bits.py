"""Where small integers lie in the bytes of a block, as a description, and how such are read and written."""

import functools
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int8, Shaped, UInt8


@dataclass(frozen=True)
class Bits:
    """Where some bits of each integer lie.

    Integers come in runs. Those of a run have neighbouring words; those of the next run have the bits above in the same
    words; when these are full, the next words follow.

    Attributes:
        at: the first byte.
        width: how many bits of an integer.
        run: how many integers are a run.
        to: where these bits are in the integer.
        first, count: the integers that have them here; a count of 0 means all from the first on.
        shift: bits at the bottom of the words that belong to others.
        word: bytes of a word, the lowest first.
        signed: whether the highest bit is flipped, so that signed bytes become integers from 0 on.
    """

    at: int
    width: int
    run: int = 1
    to: int = 0
    first: int = 0
    count: int = 0
    shift: int = 0
    word: int = 1
    signed: bool = False

    @property
    def shifts(self) -> range:
        """Where in a word the runs begin that share it."""
        return range(self.shift, 8 * self.word - self.width + 1, self.width)

    @property
    def flipped(self) -> int:
        """The bit that is flipped, or 0."""
        return self.signed << self.width - 1

    def num_words(self, count: int) -> int:
        """How many words have the bits of so many integers."""
        return -(-count // (len(self.shifts) * self.run)) * self.run


@dataclass(frozen=True)
class Integers:
    """Integers of a block, of at most 8 bits: codes, or scales of groups.

    Attributes:
        count: of a block.
        bits: where they lie; together they make up the integers.
        offset: what is subtracted from them.
    """

    count: int
    bits: tuple[Bits, ...]
    offset: int = 0

    @property
    def width(self) -> int:
        """How many bits an integer has."""
        return max(bits.to + bits.width for bits in self.bits)

    def extent(self, bits: Bits) -> int:
        """How many integers have some bits."""
        return bits.count or self.count - bits.first

    def read(self, block: UInt8[Array, "... bytes"]) -> UInt8[Array, "... count"]:
        """The integers of blocks, before the offset is subtracted."""
        lead, parts = block.shape[:-1], []
        for bits in self.bits:
            count = self.extent(bits)
            given = block[..., bits.at : bits.at + bits.num_words(count) * bits.word]
            words = given[..., :: bits.word]
            for byte in range(1, bits.word):
                words = words.astype(jnp.uint32) | given[..., byte :: bits.word].astype(jnp.uint32) << 8 * byte
            shifts = jnp.array(bits.shifts, words.dtype)[:, None]
            fields = words.reshape(*lead, -1, 1, bits.run) >> shifts & (1 << bits.width) - 1 ^ bits.flipped
            fields = fields.astype(jnp.uint8).reshape(*lead, -1)[..., :count] << bits.to
            beside = (bits.first, self.count - bits.first - count)
            parts.append(jnp.pad(fields, [(0, 0)] * len(lead) + [beside]) if any(beside) else fields)
        return functools.reduce(jnp.bitwise_or, parts)

    def values(self, block: UInt8[Array, "... bytes"]) -> UInt8[Array, "... count"] | Int8[Array, "... count"]:
        """The integers of blocks less the offset."""
        integers = self.read(block)
        return (integers.astype(jnp.int16) - self.offset).astype(jnp.int8) if self.offset else integers

    def write(self, integers: Shaped[np.ndarray, "... count"], block: UInt8[np.ndarray, "... bytes"]) -> None:
        """Put integers into blocks whose bits are zero there."""
        for bits in self.bits:
            count, lead = self.extent(bits), block.shape[:-1]
            fields = integers[..., bits.first : bits.first + count] >> bits.to & (1 << bits.width) - 1 ^ bits.flipped
            words = np.zeros((*lead, bits.num_words(count)), np.uint32)
            runs = words.reshape(*lead, -1, bits.run)
            for i, shift in enumerate(bits.shifts):
                own = fields.reshape(*lead, -1, bits.run)[..., i :: len(bits.shifts), :]
                runs[..., : own.shape[-2], :] |= own.astype(np.uint32) << shift
            for byte in range(bits.word):
                end = bits.at + words.shape[-1] * bits.word
                block[..., bits.at + byte : end : bits.word] |= (words >> 8 * byte).astype(np.uint8)
