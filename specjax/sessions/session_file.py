"""Sessions in files: a conversation is taken up again in another process, and nothing of it is computed anew.

The file is in the safetensors format: the arrays of the state and of the states to go back to, by their paths, and what
else a session holds as JSON in the metadata. Of caches that are no rings it has the slots that are in use.
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
from specjax.decoding.settings import DraftConfig
from specjax.errors import SpecjaxError
from specjax.runtime.generation import GenerateOptions
from specjax.sessions.context_shift import Cut
from specjax.sessions.session import Reuse, Session, open_session
from specjax.sessions.turn_start import Snapshot
from specjax.state import KVCache

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
        "snapshot_bytes": session.snapshot_bytes,
        "floor": session.reach.floor,
        "conversation": session.conversation,
        "cuts": session.cuts,
        "tokens": session.tokens,
        "snapshots": [snapshot.length for snapshot in session.snapshots],
        "reuse": None if session.reuse is None else asdict(session.reuse),
    }
    arrays = {} if session.state is None else dict(_named("state", _cut(session.state, len(session.tokens))))
    for index, snapshot in enumerate(session.snapshots):
        arrays |= _named(f"snapshots.{index}", snapshot.parts)
    text, plain = json.dumps(header), {name: _plain(array) for name, array in arrays.items()}
    with replaced(Path(path)) as temporary:
        save_file(plain, temporary, {_KEY: text, _SUM: _sum(text, plain)})


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


def _read(
    model: Model,
    options: GenerateOptions,
    header: dict[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> Session:
    session = open_session(model, options, header["slots"], header["when_full"], header["keep"])
    empty = partial(model.decoder(options).init_state, 1, session.slots)
    parts = jax.eval_shape(lambda: Snapshot.of(empty(), 0).parts)

    def filled(prefix: str, shapes: Any) -> Any:
        leaves, tree = jax.tree.flatten(shapes)
        names = [name for name, _ in _named(prefix, shapes)]
        return jax.tree.unflatten(tree, [_whole(arrays[name], leaf) for name, leaf in zip(names, leaves, strict=True)])

    return replace(
        session,
        snapshot_bytes=header["snapshot_bytes"],
        reach=replace(session.reach, floor=header["floor"]),
        conversation=tuple(header["conversation"]),
        cuts=tuple(Cut(*cut) for cut in header["cuts"]),
        tokens=tuple(header["tokens"]),
        state=filled("state", jax.eval_shape(empty)) if arrays else None,
        snapshots=tuple(
            Snapshot(length, filled(f"snapshots.{index}", parts)) for index, length in enumerate(header["snapshots"])
        ),
        reuse=None if header["reuse"] is None else Reuse(**header["reuse"]),
    )


def _named(prefix: str, tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree.leaves_with_path(tree):
        yield f"{prefix}{jax.tree_util.keystr(path)}", leaf


def _cut(state: Any, length: int) -> Any:
    """The state with caches of `length` slots: those after them are not read, but rings have them all in use."""

    def cut(node: Any) -> Any:
        if not isinstance(node, KVCache) or node.window is not None:
            return node
        return replace(node, k=node.k.map(lambda x: x[:, :length]), v=node.v.map(lambda x: x[:, :length]))

    return jax.tree.map(cut, state, is_leaf=lambda node: isinstance(node, KVCache))


def _plain(array: jax.Array) -> np.ndarray:
    """The array in a type that NumPy knows by itself."""
    host = np.asarray(array)
    return host.view(f"u{host.itemsize}") if host.dtype.kind == "V" else host


def _whole(array: np.ndarray, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    """The array with all slots, those that were not in use as zeros."""
    array = array.view(wanted.dtype)
    if array.shape == wanted.shape:
        return jnp.asarray(array)
    unused = [(0, size - used) for used, size in zip(array.shape, wanted.shape, strict=True)]
    return jnp.asarray(np.pad(array, unused))


def _marks(model: Model, options: GenerateOptions) -> dict[str, str]:
    """By what a model is known again, wherever its parameters lie and however matrices are packed."""
    vectors = [leaf for leaf in jax.tree.leaves(model.params) if leaf.ndim == 1 and leaf.dtype == jnp.float32]
    return {
        "config": repr(model.config),
        "drafter": repr(model.decoder(options).active_drafter),
        "norms and biases": f"{zlib.crc32(b''.join(np.asarray(leaf).tobytes() for leaf in vectors)):08x}",
    }


def _check_model(model: Model, options: GenerateOptions, saved: dict[str, str], path: str | Path) -> None:
    different = [name for name, mark in _marks(model, options).items() if mark != saved[name]]
    if different:
        raise SpecjaxError(
            f"{path} is a session of another model: {model.path} has a {', '.join(different)} of its own"
        )
