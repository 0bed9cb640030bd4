"""Model files: GGUF and Hugging Face safetensors in and out, tokenizers, and the name tables that connect them."""

from checkpoints.errors import (
    CheckpointError,
    ConfigError,
    FormatError,
    MissingMTPWarning,
    TensorMismatchError,
    TokenizerError,
    UnknownArchitectureError,
)
from checkpoints.gguf.writer import write_gguf
from checkpoints.load import Checkpoint, Description, OpenedCheckpoint, describe, load, open_checkpoint
from checkpoints.safetensors.writer import write_hf
from checkpoints.source import TensorInfo
from checkpoints.tokenizers.tokenizer import StreamDecoder, TextTokenizer
from checkpoints.tokenizers.vocabulary import Vocabulary

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "Description",
    "FormatError",
    "MissingMTPWarning",
    "OpenedCheckpoint",
    "StreamDecoder",
    "TensorInfo",
    "TensorMismatchError",
    "TextTokenizer",
    "TokenizerError",
    "UnknownArchitectureError",
    "Vocabulary",
    "describe",
    "load",
    "open_checkpoint",
    "write_gguf",
    "write_hf",
]
