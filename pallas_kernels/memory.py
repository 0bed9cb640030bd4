"""What was measured of implementations on this device, kept in the user's cache folder for the processes to come.

There is one file for each kind of device, its driver, the versions of jax, Triton and this package, and the block sizes
that were tuned. Without a cache folder it is kept for this process alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import IO

import jax

from pallas_kernels import native, tuning
from pallas_kernels.choices import Choice, as_data, from_data
from pallas_kernels.files import cache_folder, replace_text

_DRIVER = Path("/sys/module/nvidia/version")
_BETWEEN = 0.2
"""Seconds between two looks at a lock."""
_known: dict[Path | None, dict[str, Choice]] = {}
"""By file, what this process has read or measured."""


def file() -> Path | None:
    """Where choices for this device are kept; None without a cache folder."""
    folder = cache_folder()
    if folder is None:
        return None
    digest = hashlib.sha256(json.dumps(about(), sort_keys=True).encode()).hexdigest()[:12]
    device = re.sub("[^a-z0-9]+", "_", about()["device"].lower()).strip("_")
    return folder / "kernels" / f"{device}-{digest}.json"


@cache
def about() -> Mapping[str, str]:
    """What measurements depend on, besides the sizes of a call."""
    device = jax.devices()[0]
    client = str(getattr(device.client, "platform_version", ""))
    driver = _DRIVER.read_text().strip() if device.platform == "gpu" and _DRIVER.exists() else ""
    return {
        "device": device.device_kind,
        "machine": _processor() if device.platform == "cpu" else "",
        "native": _native() if device.platform == "cpu" else "",
        "driver": " ".join([driver, *client.split()]).strip(),
        "jax": f"{jax.__version__}, jaxlib {jax.lib.__version__}",
        "triton": ", ".join(f"{name} {_version(name)}" for name in ("triton", "jax-triton")),
        "package": _package(),
        "blocks": tuning.digest(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _processor() -> str:
    """A device of the kind "cpu" may be any."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.exists() else []
    return f"{os.cpu_count()} x {names[0] if names else platform.processor()}"


def _native() -> str:
    """The instructions that native kernels use."""
    return native.instruction_set() if native.available() else "none"


def _package() -> str:
    """A number of all sources of kernels: what was wrong or slow may have been mended."""
    total = hashlib.sha256((native.sources.digest() or "").encode())
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        total.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


def remembered() -> Mapping[str, Choice]:
    """Choices for the default device by their keys, see `Choice.key`.

    Warns:
        RuntimeWarning: a file is damaged or of something else. It is ignored, and replaced when something is measured.
    """
    path = file()
    if path not in _known:
        _known[path] = _read(path)
    return _known[path]


def remember(choices: Mapping[str, Choice]) -> None:
    """Keep choices beside those that are there, also those that other processes have written meanwhile.

    A folder that cannot be written to is left alone: then they are kept for this process.
    """
    path = file()
    known = dict(remembered())
    if path is None:
        _known[path] = known | dict(choices)
        return
    with suppress(OSError), _locked(path):
        known |= _read(path, quiet=True)
        replace_text(path, json.dumps({"about": dict(about()), "choices": as_data(known | dict(choices))}, indent=1))
    _known[path] = known | dict(choices)
    _note_down([pair for pair in fatal() if pair[0] not in choices])


@contextmanager
def noted(key: str, impl: str) -> Iterator[None]:
    """Note what this process is about to try: should it crash, `fatal` tells the next ones, until they remember it."""
    before = fatal()
    _note_down([*before, (key, impl)])
    try:
        yield
    finally:
        _note_down(before)


def fatal() -> list[tuple[str, str]]:
    """The keys of choices and the implementations that processes before tried when they crashed."""
    path = _note()
    try:
        return [(str(key), str(impl)) for key, impl in json.loads(path.read_text())] if path is not None else []
    except (OSError, ValueError):
        return []


def _note_down(pairs: list[tuple[str, str]]) -> None:
    path = _note()
    if path is None:
        return
    with suppress(OSError):  # as in `remember`
        if pairs:
            replace_text(path, json.dumps(pairs))
        else:
            path.unlink(missing_ok=True)


def _note() -> Path | None:
    path = file()
    return None if path is None else path.with_suffix(".trying")


def _read(path: Path | None, *, quiet: bool = False) -> dict[str, Choice]:
    try:
        text = "" if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    try:
        return _parsed(text) if text else {}
    except ValueError as error:
        if not quiet:
            what = f"{path}: what was measured of kernels cannot be used: {error}. It is ignored, and will be replaced"
            warnings.warn(what, RuntimeWarning, stacklevel=3)
        return {}


def _parsed(text: str) -> dict[str, Choice]:
    content = json.loads(text)
    if not isinstance(content, dict) or set(content) != {"about", "choices"}:
        raise ValueError("it is no object with about and choices")
    if content["about"] != about():
        raise ValueError(f"it is of {content['about']!r}, and this is {dict(about())!r}")
    return from_data(content["choices"])


@contextmanager
def turn(wait: Callable[[], None], seconds: float = 300.0) -> Iterator[None]:
    """No other program measures on such a device meanwhile; what it has remembered is known then.

    Two that measure at the same time would time each other's work, and keep what they found.

    Args:
        wait: called once if another one measures.
        seconds: to wait at most; whoever takes longer has stopped.
    """
    path = file()
    with ExitStack() as held:
        if path is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                lock = held.enter_context(path.with_suffix(".measuring").open("w"))
                if not _taken(lock):
                    wait()
                    end = time.monotonic() + seconds
                    while not _taken(lock) and time.monotonic() < end:
                        time.sleep(_BETWEEN)
            _known[path] = {**remembered(), **_read(path, quiet=True)}
        yield


def _taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """No other process writes the file meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
