"""A model whose parameters are shapes: what loading would make, known without reading weights.

The shapes say how they lie on a mesh, which need not be there. So what devices would hold can be counted, and programs
can be lowered and compiled for them, see `jax.stages`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from checkpoints.mapping.table import Outline, outlined_on_default_device
from pallas_kernels.matmul import Activations
from specjax.mesh.plan import AnyMesh
from specjax.models.drafters.trimmed import outline_of_trimmed
from specjax.models.protocol import ModelConfig
from specjax.runtime.draft_vocabulary import DraftVocabularySource
from specjax.runtime.drafters import DrafterSources
from specjax.runtime.loading import Models, check_packed, mesh_for, open_models, plan_of, tokens_to_draft
from specjax.runtime.model import Model


def outline(
    path: str | Path | None = None,
    *,
    drafter: DrafterSources | None = None,
    draft_vocab: DraftVocabularySource | None = None,
    dtype: Any = "float32",
    packed: Activations | None = "a16",
    mesh: str | AnyMesh | None = None,
) -> Model:
    """The model that `specjax.load` would make, with shapes for parameters and without a tokenizer. It cannot run.

    Arguments and errors are those of `specjax.load`. Layouts of packed matrices are those of the platform that
    `pallas_kernels.using` names.
    """
    check_packed(packed)
    devices = mesh_for(mesh)
    models = open_models(path, drafter, devices, packed=packed is not None)
    tokens = None if draft_vocab is None else tokens_to_draft(models, draft_vocab)
    return outline_of(models, dtype=dtype, packed=packed, mesh=devices, tokens=tokens)


def outline_of(
    models: Models,
    *,
    dtype: Any,
    packed: Activations | None,
    mesh: AnyMesh | None,
    tokens: np.ndarray | None = None,
) -> Model:
    """`outline` of models whose files were opened for the mesh; `tokens` are those that the drafter scores."""
    put: Outline = outlined_on_default_device
    if mesh is not None:
        put = plan_of(mesh, models, packed=packed is not None).outline
    params = dict(models.opened.outline(dtype, put=put, packed=packed))
    if models.other is not None:
        params |= models.other.outline(dtype, packed, put)
    drafter = models.drafter
    if drafter is not None and tokens is not None:
        drafter, added = outline_of_trimmed(drafter, params, tokens, put)
        params |= added
    return Model(
        config=cast("ModelConfig", models.opened.config),
        params=params,
        tokenizer=None,
        target=models.target,
        drafter=drafter,
        path=models.opened.path,
        drafter_names=models.drafter_names,
    )
