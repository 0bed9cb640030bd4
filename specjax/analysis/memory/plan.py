"""What each device would hold of a model and of the texts that it writes, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import jax

from pallas_kernels import using
from pallas_kernels.matmul import Activations
from specjax.analysis.memory.devices import Device, device_named
from specjax.analysis.memory.liveness import peak_bytes
from specjax.decoding.decoder import DecodeState
from specjax.decoding.new_state import seats_on_rows
from specjax.errors import SpecjaxError
from specjax.mesh.plan import sizes_of, without_devices
from specjax.mesh.shards import ROWS
from specjax.runtime.draft_vocabulary import DraftVocabularySource
from specjax.runtime.drafters import DrafterSources
from specjax.runtime.options import GenerateOptions, OptionChanges, options_of, takes_options
from specjax.runtime.outline import outline
from specjax.runtime.pieces import LARGE_PIECE, MOST_PAIRS, PIECE_SIZES, longest_piece, width_of
from specjax.runtime.programs import Programs
from specjax.runtime.slots import slots_for

COPIES = {"tpu": 4 / 3}
"""By platform, by how much programs need more than is counted. On TPUs arrays lie in tiles of 8 rows, and XLA copies an
array whose rows a reshape joins if they are no multiple of 8. The inputs of an MTP head are such: a piece of 256 tokens
has 259 rows of them. Three arrays of that size are then held, of which two are counted, and others beside them."""


def bytes_on_device(tree: Any) -> int:
    """Bytes that one device holds of arrays or of shapes that say how they lie."""

    def size(leaf: Any) -> int:
        sharding = getattr(leaf, "sharding", None)
        shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
        return math.prod(shape) * leaf.dtype.itemsize

    return sum(map(size, jax.tree.leaves(tree)))


@dataclass(frozen=True)
class MemoryPlan:
    """What each device of a mesh holds, in bytes.

    Attributes:
        path: of the model.
        mesh: its rows, and the parts of the model.
        device: what the devices are.
        batch, slots: texts at once, and tokens that each has room for.
        parameters: by what they belong to: "target", "mtp", "draft" and so on.
        state: by what keeps it: caches, rings, recurrent states, the drafter, the rest.
        temporaries: an estimate of what programs need besides, by program. They do not run at the same time.
    """

    path: Path
    mesh: tuple[int, int]
    device: Device
    batch: int
    slots: int
    parameters: Mapping[str, int]
    state: Mapping[str, int]
    temporaries: Mapping[str, int]
    _state_of: Callable[[int, int], int] = field(repr=False, compare=False)
    _context: int = field(repr=False)

    @property
    def total(self) -> int:
        """All that is held at one time: parameters, state and the temporaries of the program that needs most."""
        return self._needed(self.batch, self.slots)

    @property
    def fits(self) -> bool:
        """Whether that is no more than a device has."""
        return self.total <= self.device.memory

    def largest_batch(self) -> int:
        """The most texts of `slots` tokens that fit, 0 if none does. Temporaries are taken to grow with the batch."""
        rows = self.mesh[0]
        return _largest(lambda count: self._needed(count * rows, self.slots) <= self.device.memory) * rows

    def largest_context(self) -> int:
        """The most tokens of each of `batch` texts that fit, in steps of slots; 0 if none do."""
        step = slots_for(1)
        most = self._context // step
        fits = partial(self._fits_steps, step)
        return (most if fits(most) else _largest(fits)) * step

    def _fits_steps(self, step: int, count: int) -> bool:
        return self._needed(self.batch, count * step) <= self.device.memory

    def _needed(self, batch: int, slots: int) -> int:
        temporaries = dict(self.temporaries)
        tokens = LARGE_PIECE.get(self.device.platform, PIECE_SIZES[-1])
        # The large piece has one prompt in any batch, and is not made for more slots than these.
        large = temporaries.pop(_of_piece(1, tokens), 0) if tokens > PIECE_SIZES[-1] else 0
        of_large = large * max(1, min(slots, MOST_PAIRS // tokens) / self.slots)
        others = max(temporaries.values(), default=0) * max(1, batch / self.batch) * max(1, slots / self.slots)
        return int(sum(self.parameters.values()) + self._state_of(batch, slots) + max(of_large, others))


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest number for which it is true, if it is true of all below; 0 if not even of 1."""
    if not fits(1):
        return 0
    high = 2
    while fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@takes_options
def plan_memory(
    path: str | Path | None = None,
    options: GenerateOptions | None = None,
    *,
    mesh: str = "1x1",
    device: str = "cpu",
    device_memory: float | None = None,
    batch: int = 1,
    context: int = 4096,
    drafter: DrafterSources | None = None,
    draft_vocab: DraftVocabularySource | None = None,
    dtype: Any = "float32",
    packed: Activations | None = "a16",
    temporaries: bool = True,
    **changes: Unpack[OptionChanges],
) -> MemoryPlan:
    """What each device would hold of a model, and whether it fits. Of the file nothing but its header is read.

    >>> plan = specjax.plan_memory("model.gguf", mesh="1x4", device="v5e", batch=8, context=16384)
    >>> plan.fits, plan.largest_batch()

    Args:
        path, drafter, draft_vocab, dtype, packed: as `specjax.load` has them.
        options: see `Model.generate`; those that matter are `draft`, `rollback` and the types of KV caches.
        mesh: ROWSxMODEL.
        device: one of `specjax.analysis.memory.DEVICES`, or "cpu", this machine's memory.
        device_memory: GiB of one device, if it has another than the table says.
        batch: texts at once.
        context: tokens of each, prompt and continuation.
        temporaries: whether to estimate temporary memory, which traces programs and takes seconds for many layers.

    Raises:
        SpecjaxError: there is no such device, or the model cannot be split so; the message lists what does not divide.
        checkpoints.CheckpointError: as `specjax.load`.
    """
    try:
        sizes = sizes_of(mesh)
    except ValueError as error:
        raise SpecjaxError(str(error)) from error
    if batch < 1 or context < 1:
        raise ValueError(f"batch is {batch} and context is {context}; give at least 1 of each")
    kind = device_named(device, sizes[0] * sizes[1], device_memory)
    nowhere = None if sizes == (1, 1) else without_devices(sizes)
    with using(platform=kind.platform):
        model = outline(path, drafter=drafter, draft_vocab=draft_vocab, dtype=dtype, packed=packed, mesh=nowhere)
        decoder = model.decoder(options_of(options, changes))
        programs = Programs(decoder, model.params, nowhere)
        most = decoder.target.context_length
        batch, slots = seats_on_rows(sizes[0], batch), min(slots_for(context), slots_for(most))
        state = programs.state(batch, slots)
        estimates = _temporaries(programs, state, batch, COPIES.get(kind.platform, 1.0)) if temporaries else {}
    return MemoryPlan(
        path=model.path,
        mesh=sizes,
        device=kind,
        batch=batch,
        slots=slots,
        parameters={name: bytes_on_device(own) for name, own in model.params.items()},
        state=_by_keeper(state),
        temporaries=estimates,
        _state_of=partial(_state_bytes, programs),
        _context=most,
    )


def _state_bytes(programs: Programs, batch: int, slots: int) -> int:
    """Bytes of a state on each device. Sequences are alike, so that those of one row of devices tell of all."""
    rows = 1 if programs.mesh is None else programs.mesh.shape[ROWS]
    if batch % rows:
        return bytes_on_device(programs.state(batch, slots))
    return bytes_on_device(programs.state(rows, slots)) * (batch // rows)


def _temporaries(programs: Programs, state: DecodeState, batch: int, copies: float) -> dict[str, int]:
    """What the programs of a running state need besides their arguments."""

    def needed(traced: jax.stages.Traced) -> int:
        return int(copies * peak_bytes(traced.jaxpr.jaxpr))

    found = {"a round": needed(programs.rounds(state))}
    widths = width_of(max(1, batch // 4), batch), batch
    pieces = [(width, PIECE_SIZES[-1]) for width in widths]
    if (longest := longest_piece(programs.decoder, state.sequences)) > PIECE_SIZES[-1]:
        pieces.append((1, longest))
    for columns, tokens in dict.fromkeys(pieces):
        found[_of_piece(columns, tokens)] = needed(programs.feeding(state, batch, columns=columns, tokens=tokens))
    return found


def _of_piece(columns: int, tokens: int) -> str:
    return f"{tokens} tokens of {columns} prompt{'s' * (columns > 1)}"


def _by_keeper(state: DecodeState) -> dict[str, int]:
    """The bytes of a state, by what keeps them."""
    found: dict[str, int] = {}
    for name, part in _keepers(state):
        found[name] = found.get(name, 0) + bytes_on_device(part)
    rest = bytes_on_device(state) - sum(found.values())
    return {**found, "tokens and settings": rest}


def _keepers(state: DecodeState) -> Iterator[tuple[str, Any]]:
    for layer in state.sequences.layers:
        if layer.rings:
            yield f"caches of the last {layer.rings[0].window} tokens", layer
        else:
            yield "recurrent states" if layer.limit is None else "caches", layer
    if state.sequences.drafter is not None:
        yield "drafter", state.sequences.drafter
