"""Conversion of checkpoints between GGUF, Hugging Face safetensors and Orbax, tensor by tensor."""

from checkpoints.convert.convert import Conversion, ConvertOptions, Kind, prepare, remove

__all__ = ["Conversion", "ConvertOptions", "Kind", "prepare", "remove"]
