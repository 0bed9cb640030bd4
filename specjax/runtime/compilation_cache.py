"""Compiled programs on disk, so that the second process starts fast. For commands and for Python alike."""

from __future__ import annotations

from pallas_kernels.files import cache_folder

LEAST_SECONDS = 0.2
"""Programs that compile faster are not worth a file."""


def use_compilation_cache() -> None:
    """Let JAX keep compiled programs on disk, from now on.

    A cache that the user has configured for JAX itself is left alone, and so is a folder that cannot be made.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    folder = cache_folder()
    if folder is None or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    compilation_cache.reset_cache()  # what was compiled before has made JAX believe that there is none
