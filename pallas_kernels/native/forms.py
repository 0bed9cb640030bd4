"""Native kernels in programs: on CPUs alone, and with derivatives."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax


def on_cpu(run: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """`run` in programs for CPUs, `elsewhere` in those that are lowered here for platforms without native kernels.

    Derivatives are those of `elsewhere`. Arrays go by position, settings by name.
    """

    def call(*arrays: Any, **settings: Any) -> Any:
        native, plain = partial(run, **settings), partial(elsewhere, **settings)
        forms = jax.custom_jvp(lambda *arrays: jax.lax.platform_dependent(*arrays, cpu=native, default=plain))
        forms.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
        return forms(*arrays)

    return call
