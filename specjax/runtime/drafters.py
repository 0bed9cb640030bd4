"""Giving a target a drafter that does not come in its file: one from a file of its own, or any drafter as a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

import jax
from gguf import TokenType

import checkpoints
from checkpoints.mapping.reading import Given
from checkpoints.mapping.table import PLAIN, Outline, Put
from checkpoints.mapping.tree import flatten, unflatten
from pallas_kernels.matmul import Activations
from specjax.errors import SpecjaxError
from specjax.mesh.plan import AnyMesh, Cut
from specjax.models import registry
from specjax.models.drafters.first_of import FirstOf, united
from specjax.models.drafters.ngram import NGram
from specjax.models.drafters.trimmed import trimmed_paths
from specjax.models.protocol import Drafter, FileDrafter, Params, Target
from specjax.runtime.draft_by import told_apart
from specjax.runtime.large_pages import in_large_pages
from specjax.runtime.plan import plan_for
from specjax.state import KVTypes, Part

DrafterSource = str | Path | Drafter
"""A file or folder with a small model or with a drafter that was made for the target, "ngram", "mtp" for the heads in
the target's own file, or any drafter: `specjax.NGram(longest=3)`, or an object of a class of your own."""

DrafterSources = DrafterSource | Sequence[DrafterSource]
"""One drafter, or several, see `FirstOf`."""


Fitted = Callable[[checkpoints.OpenedCheckpoint], checkpoints.OpenedCheckpoint]
"""Fits what a file says of its model to the devices that it is loaded onto."""


def as_it_is(opened: checkpoints.OpenedCheckpoint) -> checkpoints.OpenedCheckpoint:
    """The file as it is, for one device."""
    return opened


@dataclass(frozen=True)
class LoadSettings:
    """How parameters are read, see `specjax.load`; `put` makes the parameter of a path."""

    dtype: Any
    packed: Activations | None
    progress: Any
    put: Put


class Candidate(Protocol):
    """A drafter that fits the target, whose parameters are not read yet."""

    @property
    def drafter(self) -> Drafter:
        """What drafts, attached to the target."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """What requests call it, see `Model.drafter_names`."""
        ...

    @property
    def paths(self) -> list[str]:
        """Paths of the parameters that it adds to the target's."""
        ...

    def cuts(self, mesh: AnyMesh, *, packed: bool) -> Mapping[str, Cut]:
        """How its parameters are split over a mesh, see `specjax.mesh.plan`; SpecjaxError if they cannot be."""
        ...

    def outline(self, dtype: Any, packed: Activations | None, put: Outline) -> Params:
        """The parameters that it adds, as shapes that `put` makes. Vocabularies are not compared."""
        ...

    def load(self, checkpoint: checkpoints.Checkpoint, settings: LoadSettings) -> Params:
        """The parameters that it adds to those of the loaded target.

        Raises:
            SpecjaxError: they do not fit the target; the message says in what.
            checkpoints.CheckpointError: as for `specjax.load`.
        """
        ...


def open_drafters(
    sources: DrafterSources, opened: checkpoints.OpenedCheckpoint, fitted: Fitted = as_it_is
) -> Candidate:
    """The candidate that a source or several stand for. No weights are read.

    Args:
        sources: see `DrafterSources`.
        opened: the file of the target.
        fitted: see `Fitted`.

    Raises:
        SpecjaxError: an object is no drafter; a drafter does not fit the target; or the list is empty.
        checkpoints.CheckpointError: as for `specjax.load`.
    """
    every = [sources] if isinstance(sources, str) or not isinstance(sources, Sequence) else sources
    if not every:
        raise SpecjaxError("the list of drafters is empty; leave the drafter out, or name one")
    earlier = [_open(each, opened, NGram.before_others(), fitted) for each in every[:-1]]
    last = _open(every[-1], opened, NGram(), fitted)
    return _Several((*earlier, last)) if earlier else last


def _open(source: DrafterSource, target_file: checkpoints.OpenedCheckpoint, ngram: NGram, fitted: Fitted) -> Candidate:
    """The candidate that a source stands for; `ngram` is what "ngram" means."""
    target, head = registry.build(target_file.config)
    if not isinstance(source, str | Path):
        return _Value(source, target)
    if source == "ngram":
        return _Value(ngram, target, "ngram")
    if source == "mtp":
        if head is None:
            raise SpecjaxError(f"{target_file.path} has no MTP head, which the drafter 'mtp' names; leave it out")
        return _Own(head)
    opened = fitted(checkpoints.open_checkpoint(source, registry.FAMILIES))
    form = registry.from_file(opened.config)
    try:
        return _File(opened, form, form.attach(target), (Path(source).name or str(source),))
    except ValueError as error:
        raise SpecjaxError(f"{opened.path} cannot draft for {target_file.path}: {error}") from error


@dataclass(frozen=True)
class _Own:
    """The heads that come in the target's file."""

    drafter: Drafter

    @property
    def names(self) -> tuple[str, ...]:
        return ("mtp",)

    @property
    def paths(self) -> list[str]:
        return []

    def cuts(self, mesh: AnyMesh, *, packed: bool) -> Mapping[str, Cut]:
        return {}

    def outline(self, dtype: Any, packed: Activations | None, put: Outline) -> Params:
        return {}

    def load(self, checkpoint: checkpoints.Checkpoint, settings: LoadSettings) -> Params:
        return {}


@dataclass(frozen=True)
class _Several:
    """Candidates that draft together, in their order."""

    candidates: tuple[Candidate, ...]

    @property
    def drafter(self) -> FirstOf:
        return FirstOf(tuple(candidate.drafter for candidate in self.candidates))

    @property
    def names(self) -> tuple[str, ...]:
        return told_apart([name for candidate in self.candidates for name in candidate.names])

    @property
    def paths(self) -> list[str]:
        return [path for candidate in self.candidates for path in candidate.paths]

    def cuts(self, mesh: AnyMesh, *, packed: bool) -> Mapping[str, Cut]:
        each = (candidate.cuts(mesh, packed=packed) for candidate in self.candidates)
        return {path: cut for cuts in each for path, cut in cuts.items()}

    def outline(self, dtype: Any, packed: Activations | None, put: Outline) -> Params:
        return self._united(candidate.outline(dtype, packed, put) for candidate in self.candidates)

    def load(self, checkpoint: checkpoints.Checkpoint, settings: LoadSettings) -> Params:
        return self._united(candidate.load(checkpoint, settings) for candidate in self.candidates)

    def _united(self, params: Iterable[Params]) -> Params:
        try:
            return united(list(params))
        except ValueError as error:
            raise SpecjaxError(str(error)) from error


class _Value:
    """A drafter that is an object already, with the name of its class unless it has another one."""

    def __init__(self, drafter: Drafter, target: Target, name: str | None = None) -> None:
        check_drafter(drafter)
        self.names = (" and ".join(drafter.class_names) if name is None else name,)
        try:
            self.drafter, self._params = drafter.attach(target), drafter.parameters(target)
        except ValueError as error:
            raise SpecjaxError(f"the drafter {drafter!r} does not fit the target: {error}") from error
        check_drafter(self.drafter)

    @property
    def paths(self) -> list[str]:
        return list(flatten(self._params))

    def cuts(self, mesh: AnyMesh, *, packed: bool) -> Mapping[str, Cut]:
        """None: what such drafters bring along lies whole on every device."""
        return {}

    def load(self, checkpoint: checkpoints.Checkpoint, settings: LoadSettings) -> Params:
        if taken := sorted(self._params.keys() & checkpoint.params.keys()):
            raise SpecjaxError(
                f"the parameters of {self.drafter!r} are called {', '.join(taken)}, as those of the target are; give"
                " them another name"
            )
        placed = {path: settings.put(path, Given(value), PLAIN) for path, value in flatten(self._params).items()}
        return unflatten(placed)

    def outline(self, dtype: Any, packed: Activations | None, put: Outline) -> Params:
        del dtype, packed
        shapes = flatten(jax.eval_shape(lambda: self._params))
        return unflatten({path: put(path, shape, PLAIN) for path, shape in shapes.items()})


@dataclass(frozen=True)
class _File:
    """A model in a file of its own."""

    opened: checkpoints.OpenedCheckpoint
    form: FileDrafter
    drafter: Drafter
    names: tuple[str, ...]

    @property
    def paths(self) -> list[str]:
        own = [path for path in self.opened.parameter_paths if path.split(".")[0] == self.form.part]
        return [self._path(path) for path in own]

    def _path(self, path: str) -> str:
        return path if self.form.under is None else f"{self.form.under}.{path}"

    def cuts(self, mesh: AnyMesh, *, packed: bool) -> Mapping[str, Cut]:
        own = plan_for(mesh, self.opened, packed=packed).cuts
        return {self._path(path): cut for path, cut in own.items()}

    def outline(self, dtype: Any, packed: Activations | None, put: Outline) -> Params:
        return self._own(self.opened.outline(dtype, packed=packed, put=self._renamed(put)))

    def load(self, checkpoint: checkpoints.Checkpoint, settings: LoadSettings) -> Params:
        loaded = self.opened.load(
            settings.dtype,
            need_tokenizer=False,
            progress=settings.progress,
            packed=settings.packed,
            put=self._renamed(in_large_pages(settings.put)),
        )
        if self.form.own_vocabulary:
            check_vocabulary(loaded, checkpoint)
        return self._own(loaded.params)

    def _renamed(self, put: Callable[[str, Any, Any], Any]) -> Callable[[str, Any, Any], Any]:
        """For the paths that its parameters have in its own file."""
        return lambda path, values, form: put(self._path(path), values, form)

    def _own(self, params: Mapping[str, Any]) -> Params:
        own = {self.form.part: params[self.form.part]}
        return own if self.form.under is None else {self.form.under: own}


def check_head(drafter: Drafter) -> None:
    """Raise `SpecjaxError` unless a drafter has an output head that can score some tokens only."""
    try:
        trimmed_paths(drafter)
    except ValueError as error:
        raise SpecjaxError(f"no draft vocabulary can be given to this drafter: {error}; leave it out") from error


def check_drafter(drafter: Any) -> None:
    """Raise `SpecjaxError` unless an object is a drafter: it has the methods of one, and can be a static argument."""
    needed = [name for name in vars(Drafter) if not name.startswith("_")]
    if missing := [name for name in needed if not hasattr(drafter, name)]:
        raise SpecjaxError(
            f"{drafter!r} is no drafter: it has no {', '.join(missing)}. Derive its class from specjax.BaseDrafter,"
            " which answers for all but propose"
        )
    try:
        hash(drafter)
    except TypeError as error:
        raise SpecjaxError(
            f"{drafter!r} cannot be hashed ({error}), but compiled programs are told apart by their drafters: make its"
            " class a frozen dataclass, and return arrays from its method parameters"
        ) from error
    state = jax.eval_shape(lambda: drafter.init_state(1, 1, rows=2, chunk=1, kv_types=KVTypes()))
    if not (state is None or isinstance(state, Part)):
        raise SpecjaxError(
            f"the state of {drafter!r} is a {type(state).__name__}: derive its class from specjax.state.Part, as a"
            " flax.struct.dataclass, so that sessions and batches can ask it what they need to know"
        )


def check_vocabulary(drafter: checkpoints.Checkpoint, target: checkpoints.Checkpoint) -> None:
    """Raise `SpecjaxError` unless a token id means the same to both. Without tokenizers, only sizes can be compared."""
    where = f"{drafter.path} cannot draft for {target.path}"
    if drafter.tokenizer is None or target.tokenizer is None:
        sizes = drafter.config.vocab_size, target.config.vocab_size
        if sizes[0] != sizes[1]:
            raise SpecjaxError(
                f"{where}: their vocabularies have {sizes[0]} and {sizes[1]} tokens; the tokens cannot be compared,"
                " because a file has no tokenizer"
            )
        return
    own, others = _names(drafter.tokenizer), _names(target.tokenizer)
    different = [pair for pair in enumerate(zip_longest(own, others)) if pair[1][0] != pair[1][1]]
    if different:
        index, (name, other) = different[0]
        raise SpecjaxError(
            f"{where}: their vocabularies differ in {len(different)} of {max(len(own), len(others))} tokens, first in"
            f" {index}: {name!r} against {other!r}; a draft model must share every token"
        )


def _names(tokenizer: checkpoints.TextTokenizer) -> list[str | None]:
    """The text of each id; None for ids that only fill the vocabulary up."""
    vocabulary = tokenizer.vocabulary
    pairs = zip(vocabulary.tokens, vocabulary.types, strict=True)
    return [None if kind == TokenType.UNUSED else token for token, kind in pairs]
