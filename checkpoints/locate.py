"""Where a model lies that a user names: a path, also one with `~`, or a name on the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from checkpoints.errors import FormatError

_NAME = re.compile(r"(?P<model>[\w.-]+/[\w.-]+(?<!\.gguf)(?<!\.orbax))(/(?P<file>.+\.gguf))?")
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def locate(name: str | Path) -> Path:
    """The file or folder of a model. One of the hub is downloaded, if it is not in the hub's cache already.

    Args:
        name: a path; or, if there is none of that name and no folder with its first part, "OWNER/MODEL" or
            "OWNER/MODEL/FILE.gguf" of the hub.

    Raises:
        FormatError: there is neither.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    of_hub = _NAME.fullmatch(str(name))
    if of_hub is None or path.parts[0] in (".", "..") or Path(path.parts[0]).exists():
        raise FormatError(f"{path}: no such file or directory")
    return _download(of_hub["model"], of_hub["file"])


def _download(model: str, file: str | None) -> Path:
    name = model if file is None else f"{model}/{file}"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise FormatError(
            f"{name}: no such file or directory; if this is a model of the Hugging Face hub: pip install"
            " huggingface_hub, or download it and give its path"
        ) from error
    wanted = _FILES if file is None else [_PART.sub(r"-*-of-\1.gguf", file)]
    try:
        folder = Path(snapshot_download(model, allow_patterns=wanted))
    except Exception as error:  # of the hub, the network or the disk: huggingface_hub has no base class for them
        raise FormatError(
            f"{name}: no such file or directory, and the Hugging Face hub does not give such a model: {error}"
        ) from error
    path = folder if file is None else folder / file
    if not path.exists():
        raise FormatError(f"{name}: the model {model} of the Hugging Face hub has no such file")
    return path
