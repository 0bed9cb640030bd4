"""Loading a model from a file or a folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np
from jax.sharding import Mesh

import checkpoints
from checkpoints.mapping.table import Put
from pallas_kernels.matmul import Activations
from specjax.errors import SpecjaxError
from specjax.mesh.hosts import of_all, shared
from specjax.mesh.plan import AnyMesh, Plan, as_mesh
from specjax.mesh.shards import MODEL
from specjax.models import registry
from specjax.models.drafters.trimmed import trimmed
from specjax.models.protocol import Drafter, ModelConfig, Target
from specjax.runtime.alike import check_alike
from specjax.runtime.compilation_cache import use_compilation_cache
from specjax.runtime.draft_vocabulary import DraftVocabularySource, draft_tokens
from specjax.runtime.drafters import Candidate, DrafterSources, LoadSettings, as_it_is, check_head, open_drafters
from specjax.runtime.large_pages import in_large_pages
from specjax.runtime.model import Model
from specjax.runtime.placement import Placement
from specjax.runtime.plan import in_blocks, plan_for


def bundled_model() -> Path:
    """The path of the trained model that comes with the package.

    Raises:
        FileNotFoundError: the package was built without it.
    """
    folder = Path(str(resources.files(checkpoints))) / "demo"
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise FileNotFoundError(f"no bundled model in {folder}; train one with `specjax train` or name a file")
    return files[0]


def load(
    path: str | Path | None = None,
    *,
    drafter: DrafterSources | None = None,
    draft_vocab: DraftVocabularySource | None = None,
    dtype: Any = "float32",
    packed: Activations | None = "a16",
    place: Sequence[str] = (),
    mesh: str | Mesh | None = None,
    exact: bool = False,
    need_tokenizer: bool = False,
    progress: Any = None,
) -> Model:
    """Load a model: a GGUF file, or a directory with Hugging Face safetensors; default: the bundled model.

    Args:
        path: FILE.gguf or a directory with config.json; or OWNER/MODEL or OWNER/MODEL/FILE.gguf of the Hugging Face
            hub.
        drafter: what drafts, if not the head in the file itself: the file or directory of a small model or of a drafter
            made for this one (an assistant, EAGLE-3, DFlash, DSpark), "ngram", "mtp" (the heads in the file itself), or
            any drafter, such as a `specjax.NGram` or an object of a class of your own (see `specjax.BaseDrafter`). Of a
            list, such as ["ngram", "mtp"], the first that has drafts for a row serves it, in each round.
        draft_vocab: the drafter scores these of the target's tokens only, and all others have probability 0. This
            makes drafts cheaper and changes nothing of what is said. A file that `specjax vocabulary` wrote; or a
            number N: the N tokens with the lowest ids, which in a BPE vocabulary were merged first, and so are the
            most frequent ones of the text that the tokenizer was trained on. Special tokens are always among them.
        dtype: the type of matrices that are not quantized or do not stay packed: "float32", "bfloat16" or "float16".
            Norms and recurrent parameters are always float32.
        packed: how to multiply quantized matrices, which stay packed as in the file. "a16" rounds activations to 16
            bits. "a8" rounds them to 8 bits on CPUs, as llama.cpp does, and is faster. None decodes the matrices to
            `dtype`.
        place: rules "REGEX=PLACE" for parameters that shall not be on the default device, such as "mtp=pinned_host".
            The first rule that matches a parameter's path decides. See `specjax.runtime.placement`.
        mesh: the devices that share the work, as "ROWSxMODEL" or as a `jax.sharding.Mesh` with the axes ("rows",
            "model"). The model is split into MODEL parts, and sequences over ROWS. Default: one device.
        exact: logits do not depend on the mesh, bit by bit: on all meshes they are those of `mesh="1x1"`, which is the
            default then. Devices send each other more for this. See docs/devices.md.
        need_tokenizer: whether a missing or unusable tokenizer is an error. If not, prompts must be token ids.
        progress: called with bytes done and bytes in all.

    Raises:
        checkpoints.CheckpointError: what is wrong with the file, and how to mend it.
        SpecjaxError: the drafter does not fit the model; `draft_vocab` cannot be read, or does not fit one of the two;
            or a rule of `place` is wrong or matches nothing; or there is no such mesh, or the model cannot be split so;
            or processes that share a mesh are not alike.

    Warns:
        checkpoints.MissingMTPWarning: the MTP head is declared but absent; the model decodes plainly.
        checkpoints.DecodedWarning: some types cannot stay packed, and are decoded.
    """
    check_packed(packed)
    use_compilation_cache()
    if place and (mesh is not None or exact):
        given = f"mesh={mesh!r}" if mesh is not None else "exact=True"
        raise SpecjaxError(f"{given} and place={list(place)} do not go together; leave one of them out")
    devices = mesh_for(mesh, exact=exact)
    models = open_models(path, drafter, devices, packed=packed is not None)
    opened, target, chosen, other = models
    tokens = None if draft_vocab is None else tokens_to_draft(models, draft_vocab)
    plan = None
    if devices is None:
        placement = Placement.parse(place, [*opened.parameter_paths, *([] if other is None else other.paths)])
        put: Put = placement.put
        put_besides: Put = placement.put
    else:
        plan = plan_of(devices, models, packed=packed is not None)
        put, put_besides = plan.put, plan.put_besides
    settings = LoadSettings(dtype, packed, progress, put)
    exchange = None
    if isinstance(devices, Mesh) and shared(devices):
        check_alike()
        exchange = of_all
    checkpoint = opened.load(
        dtype,
        need_tokenizer=need_tokenizer,
        packed=packed,
        progress=progress,
        put=in_large_pages(put),
        exchange=exchange,
    )
    params = dict(checkpoint.params)
    if other is not None:
        params |= other.load(checkpoint, settings)
    if chosen is not None and tokens is not None:
        chosen, added = trimmed(chosen, params, tokens, in_large_pages(put_besides))
        params |= added
    return Model(
        config=cast("ModelConfig", checkpoint.config),
        params=params,
        tokenizer=checkpoint.tokenizer,
        target=target,
        drafter=chosen,
        path=checkpoint.path,
        digest=checkpoint.digest,
        drafter_names=models.drafter_names,
    )


def check_packed(packed: Any) -> None:
    """Raise `SpecjaxError` unless quantized matrices can be multiplied so."""
    if packed not in (None, *get_args(Activations)):
        known = ", ".join(map(repr, get_args(Activations)))
        raise SpecjaxError(f"packed is {packed!r}; give {known}, or None to decode quantized matrices")


def mesh_for(given: str | AnyMesh | None, *, exact: bool = False) -> AnyMesh | None:
    """The mesh that is asked for; None for one device.

    Raises:
        SpecjaxError: there is no such mesh.
    """
    try:
        return as_mesh("1x1" if given is None else given, exact=exact) if exact or given is not None else None
    except ValueError as error:
        raise SpecjaxError(str(error)) from error


class Models(NamedTuple):
    """What a model consists of, before its weights are read.

    Attributes:
        opened: the file of the target.
        target, drafter: static descriptions.
        other: the drafter that does not come in this file, if there is one.
    """

    opened: checkpoints.OpenedCheckpoint
    target: Target
    drafter: Drafter | None
    other: Candidate | None

    @property
    def drafter_names(self) -> tuple[str, ...]:
        """What requests call the drafters, see `Model`."""
        return self.other.names if self.other is not None else ("mtp",) if self.drafter is not None else ()


def open_models(
    path: str | Path | None, drafter: DrafterSources | None, mesh: AnyMesh | None = None, *, packed: bool = True
) -> Models:
    """The target of a file, the bundled one by default, and what drafts for it; errors are those of `load`."""
    opened = checkpoints.open_checkpoint(bundled_model() if path is None else path, registry.FAMILIES)
    return models_of(opened, drafter, mesh, packed=packed)


def models_of(
    opened: checkpoints.OpenedCheckpoint, drafter: DrafterSources | None, mesh: AnyMesh | None, *, packed: bool
) -> Models:
    """The same of a file that is open; `packed`: matrices stay in blocks, between which they are split over a mesh."""
    fitted = as_it_is if mesh is None else partial(in_blocks, mesh, packed=packed)
    opened = fitted(opened)
    if registry.is_assistant(opened.config):
        raise SpecjaxError(
            f"{opened.path} only drafts: load the model it was made for, and give this file as its drafter"
        )
    target, head = registry.build(opened.config)
    other = None if drafter is None else open_drafters(drafter, opened, fitted)
    return Models(opened, target, head if other is None else other.drafter, other)


def tokens_to_draft(models: Models, draft_vocab: DraftVocabularySource) -> np.ndarray:
    """The tokens of a draft vocabulary, in ascending order, if the drafter can have one.

    Raises:
        SpecjaxError: the list cannot be read, or does not fit the target; or the drafter has no head to trim.
    """
    if models.drafter is None:
        raise SpecjaxError(f"{models.opened.path} has no MTP head, so there is none to trim; give a drafter besides")
    check_head(models.drafter)
    return draft_tokens(draft_vocab, models.opened.tokenizer(required=False), models.target.vocab_size)


def plan_of(mesh: AnyMesh, models: Models, *, packed: bool) -> Plan:
    """How the parameters of a file, and those of a drafter that has its own, are split over a mesh."""
    plan = plan_for(mesh, models.opened, packed=packed)
    try:
        if models.drafter is not None:
            models.drafter.shard(plan.mesh.shape[MODEL])
    except ValueError as error:
        raise SpecjaxError(str(error)) from error
    return plan if models.other is None else plan.joined(models.other.cuts(plan.mesh, packed=packed))
