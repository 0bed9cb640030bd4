"""Native kernels as programs call them: with the derivatives of plain XLA."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax

from pallas_kernels.native.library import instruction_set


def differentiable(run: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, with the derivatives of `plain`: the same in XLA, which is traced for derivatives alone.

    Arrays go by position, settings by name. Programs for platforms other than CPUs choose other implementations, see
    `override.using`.
    """

    def call(*arrays: Any, **settings: Any) -> Any:
        return _traced_once(run, plain, instruction_set(), tuple(settings.items()))(*arrays)

    return call


@cache
def _traced_once(
    run: Callable[..., Any], plain: Callable[..., Any], instructions: str, settings: tuple[tuple[str, Any], ...]
) -> Callable[..., Any]:
    """`run` with settings. It is traced once for shapes, not in every layer of every program.

    What is traced names the instruction set, so that is part of the key.
    """
    kernel = jax.custom_jvp(partial(run, **dict(settings)))
    kernel.defjvp(lambda primals, tangents: jax.jvp(partial(plain, **dict(settings)), primals, tangents))
    return jax.jit(kernel, inline=True)
