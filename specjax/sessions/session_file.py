"""Sessions in files: a conversation is taken up again in another process, and nothing of it is computed anew.

The file is in the safetensors format: the arrays of the state and of the states to go back to, by their paths, and what
else a session holds as JSON in the metadata. Of caches it has the slots that are in use.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from checkpoints.atomic import replaced
from specjax.decoding.decoder import Decoder
from specjax.decoding.settings import DraftConfig
from specjax.errors import SpecjaxError
from specjax.mesh.hosts import by_first, fetched
from specjax.runtime.memory import CutLimits, Memory, ReturnPoint
from specjax.runtime.options import GenerateOptions
from specjax.runtime.whole_state import Layout
from specjax.sessions.beginning import Reuse
from specjax.sessions.context_shift import Dropped
from specjax.sessions.opening import open_session
from specjax.sessions.session import Session
from specjax.sessions.turns import Turn
from specjax.state import Cut

if TYPE_CHECKING:
    from specjax.runtime.model import Model

_KEY, _SUM = "specjax_session", "crc32"


def save_session(session: Session, path: str | Path) -> None:
    """Write a session, whole or not at all.

    Raises:
        OSError: the file cannot be written.
        checkpoints.CheckpointError: the disk is full.
    """
    header = {
        "model": _marks(session.model, session.options),
        "options": asdict(session.options),
        "slots": session.slots,
        "when_full": session.when_full,
        "keep": session.keep,
        "point_bytes": session.point_bytes,
        "name": session.name,
        "conversation": session.conversation,
        "turns": session.turns,
        "drops": session.drops,
        "memory": None if session.memory is None else _memory_header(session.memory),
        "reuse": None if session.reuse is None else asdict(session.reuse),
    }
    layout = Layout.of(session.decoder, session.model.params, session.slots)
    arrays = {} if session.memory is None else dict(_memory_arrays(session.memory, layout))
    text, plain = json.dumps(header), {name: _plain(array) for name, array in arrays.items()}

    def write() -> None:
        with replaced(Path(path)) as temporary:
            save_file(plain, temporary, {_KEY: text, _SUM: _sum(text, plain)})

    by_first(layout.mesh, write)


def load_session(model: Model, path: str | Path) -> Session:
    """The session in a file.

    Raises:
        SpecjaxError: the file holds none, is damaged, or is of another model; the message says in what they differ.
        OSError: it cannot be read.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError) as error:  # a damaged header can name a type that NumPy lacks
        raise SpecjaxError(f"{path} is no saved session, or damaged ({error!r})") from error
    if _KEY not in metadata:
        raise SpecjaxError(f"{path} is no saved session; Session.save writes them")
    if metadata.get(_SUM) != _sum(metadata[_KEY], arrays):
        raise SpecjaxError(f"{path} is damaged: its contents are not those that were saved; save the session again")
    header = json.loads(metadata[_KEY])
    options = _options(header["options"])
    _check_model(model, options, header["model"], path)
    return _read(model, options, header, arrays)


def _sum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    total = zlib.crc32(text.encode())
    for name, array in sorted(arrays.items()):
        total = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), total)
        total = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, total)
    return f"{total:08x}"


def _options(saved: dict[str, Any]) -> GenerateOptions:
    draft = saved["draft"]
    return GenerateOptions(**{**saved, "draft": DraftConfig(**draft) if isinstance(draft, dict) else draft})


def _memory_header(memory: Memory) -> dict[str, Any]:
    return {
        "tokens": memory.tokens,
        "shortest": memory.limits.shortest,
        "points": [point.length for point in memory.points],
    }


def _memory_arrays(memory: Memory, layout: Layout) -> Iterator[tuple[str, Any]]:
    yield from _named("state", layout.whole(memory.state).used(len(memory.tokens)))
    for index, point in enumerate(memory.points):
        yield from _named(f"points.{index}", layout.whole(point.parts))


def _read(
    model: Model,
    options: GenerateOptions,
    header: dict[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> Session:
    wishes = {name: header[name] for name in ("slots", "when_full", "keep", "point_bytes")}
    session = open_session(model, options, **wishes)
    saved, decoder = header["memory"], model.decoder(options)
    layout = Layout.of(decoder, model.params, session.slots)
    return replace(
        session,
        name=header["name"],
        conversation=tuple(header["conversation"]),
        turns=tuple(Turn(*turn) for turn in header["turns"]),
        drops=tuple(Dropped(Cut(*cut), at) for cut, at in header["drops"]),
        memory=None if saved is None else _memory(decoder, session.slots, saved, arrays, layout),
        reuse=None if header["reuse"] is None else Reuse(**header["reuse"]),
    )


def _memory(
    decoder: Decoder, slots: int, saved: dict[str, Any], arrays: Mapping[str, np.ndarray], layout: Layout
) -> Memory:
    empty = partial(decoder.init_state, 1, slots)
    parts = jax.eval_shape(lambda: empty().kept())

    def filled(prefix: str, shapes: Any) -> Any:
        leaves, tree = jax.tree.flatten(shapes)
        names = [name for name, _ in _named(prefix, shapes)]
        filled = [_whole(arrays[name], leaf) for name, leaf in zip(names, leaves, strict=True)]
        return layout.placed(jax.tree.unflatten(tree, filled))

    return Memory(
        tokens=tuple(saved["tokens"]),
        state=filled("state", jax.eval_shape(empty)),
        limits=replace(CutLimits.of(decoder, slots), shortest=saved["shortest"]),
        points=tuple(
            ReturnPoint(length, filled(f"points.{index}", parts)) for index, length in enumerate(saved["points"])
        ),
    )


def _named(prefix: str, tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree.leaves_with_path(tree):
        yield f"{prefix}{jax.tree_util.keystr(path)}", leaf


def _plain(array: jax.Array | np.ndarray) -> np.ndarray:
    """The array in a type that NumPy knows by itself."""
    host = np.asarray(array)
    return host.view(f"u{host.itemsize}") if host.dtype.kind == "V" else host


def _whole(array: np.ndarray, wanted: jax.ShapeDtypeStruct) -> np.ndarray:
    """The array with all slots. Slots that were not in use are zeros."""
    array = array.view(wanted.dtype)
    if array.shape == wanted.shape:
        return array
    unused = [(0, size - used) for used, size in zip(array.shape, wanted.shape, strict=True)]
    return np.pad(array, unused)


def _marks(model: Model, options: GenerateOptions) -> dict[str, str]:
    """Properties by which a model is recognised. They do not depend on where parameters lie or how matrices are packed.

    The digest is that of the target's file; norms and biases are also those of a drafter. Of these the numbers count
    that occur, in no order: parts on a mesh have another order, and some have the same.
    """
    drafter = model.decoder(options).drafter
    vectors = [fetched(leaf) for leaf in jax.tree.leaves(model.params) if leaf.ndim == 1 and leaf.dtype == jnp.float32]
    numbers = np.unique(np.concatenate(vectors)) if vectors else np.zeros(0, np.float32)
    return {
        "config": repr(model.config),
        "drafter": repr(drafter and drafter.keeper),
        "digest of the weights": str(model.digest),
        "norms and biases": f"{zlib.crc32(numbers.tobytes()):08x}",
    }


def _check_model(model: Model, options: GenerateOptions, saved: dict[str, str], path: str | Path) -> None:
    different = [name for name, mark in _marks(model, options).items() if mark != saved.get(name)]
    if different:
        raise SpecjaxError(
            f"{path} is a session of another model: {model.path} has a {', '.join(different)} of its own"
        )
