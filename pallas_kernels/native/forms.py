"""Native kernels in programs: on CPUs alone, and with derivatives."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax

from pallas_kernels.native.library import instruction_set


def on_cpu(run: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """`run` in programs for CPUs, `elsewhere` in those that are lowered here for platforms without native kernels.

    Derivatives are those of `elsewhere`. Arrays go by position, settings by name.
    """

    def call(*arrays: Any, **settings: Any) -> Any:
        return _forms(run, elsewhere, instruction_set(), tuple(settings.items()))(*arrays)

    return call


@cache
def _forms(
    run: Callable[..., Any], elsewhere: Callable[..., Any], instructions: str, settings: tuple[tuple[str, Any], ...]
) -> Callable[..., Any]:
    """Both forms with their settings. They are traced once for shapes, not in every layer of every program.

    What is traced names the instruction set, so that is part of the key.
    """
    native, plain = partial(run, **dict(settings)), partial(elsewhere, **dict(settings))
    forms = jax.custom_jvp(lambda *arrays: jax.lax.platform_dependent(*arrays, cpu=native, default=plain))
    forms.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
    return jax.jit(forms, inline=True)
