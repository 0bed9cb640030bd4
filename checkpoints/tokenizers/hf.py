"""A tokenizer from Hugging Face's tokenizer.json and its neighbours, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer

from checkpoints.atomic import write_text
from checkpoints.errors import DamagedTokenizerError, TokenizerError
from checkpoints.json_file import read_object
from checkpoints.tokenizers.tokenizer import TextTokenizer
from checkpoints.tokenizers.vocabulary import BYTE_TOKENS, PRE_TOKENIZERS, SPACE, Model, Vocabulary

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
"""Files of a Hugging Face directory that describe a vocabulary, and how texts end."""

_SOME_TEXT = "a"
"""Shows what is put around a text."""
_MOST_TOKENS = 1 << 24
"""The largest vocabularies have some 300,000."""
_ROLES = {"eos": "eos_token", "bos": "bos_token", "padding": "pad_token"}


def from_directory(directory: Path) -> TextTokenizer:
    """The tokenizer of a Hugging Face model directory.

    Stop tokens are those of generation_config.json, config.json and tokenizer_config.json together.

    Raises:
        TokenizerError: there is no tokenizer.json, or it is not BPE over bytes.
        DamagedTokenizerError: it or a file beside it is damaged.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(f"{directory}: no tokenizer: there is no tokenizer.json")
    _check_document(read_object(path, DamagedTokenizerError), path)
    try:
        backend = Tokenizer.from_file(str(path))
    except BaseException as error:  # the bindings raise plain Exception; their panics are not even that
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{path}: {error}") from error
    settings = _read_if_there(directory / "tokenizer_config.json")
    special_ids = {}
    for role, key in _ROLES.items():
        token = settings.get(key)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and (i := backend.token_to_id(text)) is not None:
            special_ids[role] = i
    extra = []
    for name in ("generation_config.json", "config.json"):
        document = _read_if_there(directory / name)
        extra += _end_ids(document, directory / name) + _end_ids(document.get("text_config") or {}, directory / name)
    if extra:
        special_ids.setdefault("eos", extra[0])
    template = _template(directory / "chat_template.jinja") or settings.get("chat_template")
    return from_backend(backend, special_ids, extra, template if isinstance(template, str) else None, str(path))


def from_backend(
    backend: Tokenizer,
    special_ids: Mapping[str, int],
    extra_eos_ids: Iterable[int] = (),
    chat_template: str | None = None,
    where: str = "tokenizer",
) -> TextTokenizer:
    """A tokenizer around a `tokenizers.Tokenizer`, for instance one that was just trained.

    Args:
        backend: byte-level BPE, or BPE with byte fallback whose spaces are written as U+2581.
        special_ids: role ("eos", "bos", "padding", ...) -> id.
        extra_eos_ids: further tokens after which generation stops.
        chat_template: a Jinja template.
        where: a name for messages.

    Raises:
        TokenizerError: it is of another kind, or lacks the token of some byte.
    """
    document = json.loads(backend.to_str())
    model, kind = document["model"], _kind(document, where)
    ids = backend.get_vocab(with_added_tokens=True)
    size = max(ids.values()) + 1
    tokens, types = [f"[PAD{i}]" for i in range(size)], [TokenType.UNUSED] * size
    for token, i in ids.items():
        tokens[i] = token
        types[i] = TokenType.BYTE if kind != "gpt2" and token in BYTE_TOKENS else TokenType.NORMAL
    for i, added in backend.get_added_tokens_decoder().items():
        looks_special = added.content.startswith("<|") and added.content.endswith("|>")
        types[i] = TokenType.CONTROL if added.special or looks_special else TokenType.USER_DEFINED
        if looks_special and not added.special:  # what is a control token in a GGUF is one here
            backend.add_special_tokens([AddedToken(added.content, special=True, normalized=added.normalized)])
    leading = backend.encode("", add_special_tokens=True).ids
    plain, whole = (backend.encode(_SOME_TEXT, add_special_tokens=add).ids for add in (False, True))
    if whole != [*leading, *plain]:
        raise TokenizerError(f"{where}: the post-processor makes {whole} of {plain}; it may only put tokens in front")
    vocabulary = Vocabulary(
        tokens=tuple(tokens),
        types=tuple(types),
        merges=tuple(tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]),
        pre=_pre_tokenizer_name(document, len(leading) == 1) if kind == "gpt2" else None,
        special_ids=dict(special_ids),
        leading=tuple(leading),
        chat_template=chat_template,
        model=kind,
        space_prefix=kind == "llama",
    )
    vocabulary.check(where)
    return TextTokenizer(vocabulary, backend, extra_eos_ids)


def save(tokenizer: TextTokenizer, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json into `directory`."""
    vocabulary = tokenizer.vocabulary
    write_text(directory / "tokenizer.json", tokenizer.backend.to_str(pretty=True))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for role, key in _ROLES.items():
        if role in vocabulary.special_ids:
            settings[key] = vocabulary.tokens[vocabulary.special_ids[role]]
    if vocabulary.chat_template is not None:
        settings["chat_template"] = vocabulary.chat_template
    write_text(directory / "tokenizer_config.json", json.dumps(settings, indent=2))
    generation = {"eos_token_id": sorted(tokenizer.eos_ids)}
    write_text(directory / "generation_config.json", json.dumps(generation, indent=2))


def _check_document(document: Mapping[str, Any], path: Path) -> None:
    """
    Raises:
        DamagedTokenizerError: `tokenizers` would end the process, or panic, over such a file.
    """
    model, added = document.get("model"), document.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else []
    ids += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    if (highest := max((i for i in ids if isinstance(i, int)), default=0)) >= _MOST_TOKENS:
        raise DamagedTokenizerError(
            f"{path}: a token has the id {highest}, and no vocabulary is so large; download it again"
        )
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if isinstance(model, dict) and model.get("type") == "BPE" and model.get(key):
            raise TokenizerError(f"{path}: {key} is {model[key]!r}; only BPE without one is supported")


def _kind(document: Mapping[str, Any], where: str) -> Model:
    """Which kind of BPE a tokenizer.json describes."""
    model, pre, normalizer = document["model"], document.get("pre_tokenizer"), document.get("normalizer")
    if model["type"] == "BPE":
        if "ByteLevel" in _component_types(pre):
            return "gpt2"
        if model.get("byte_fallback"):
            match normalizer:
                case {"type": "Replace", "pattern": {"String": " "}, "content": content} if content == SPACE:
                    return "gemma4"
            if {"Prepend", "Metaspace"} & {*_component_types(pre), *_component_types(normalizer)}:
                return "llama"
    raise TokenizerError(
        f"{where}: only BPE is supported, byte-level or with byte fallback; got the model {model['type']} with the"
        f" decoder {(document.get('decoder') or {}).get('type')}"
    )


def _pre_tokenizer_name(document: Mapping[str, Any], add_bos: bool) -> str | None:
    """The name of cuts by known patterns followed by the byte alphabet; None for anything else.

    Of names with the same patterns it is the one whose texts start with the bos token or do not, as these do.
    """
    parts = document["pre_tokenizer"].get("pretokenizers", [])
    patterns = []
    for part in parts[:-1]:
        match part:
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
                patterns.append(pattern.replace("\r", r"\r").replace("\n", r"\n"))
            case _:
                return None
    match parts[-1:]:
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]:
            found = (tuple(patterns), bool(document["model"].get("ignore_merges")))
            names = [name for name, pre in PRE_TOKENIZERS.items() if (pre.patterns, pre.ignore_merges) == found]
            return min(names, key=lambda name: PRE_TOKENIZERS[name].add_bos != add_bos, default=None)
    return None


def _component_types(document: Mapping[str, Any] | None) -> list[str]:
    if document is None:
        return []
    parts = document.get("pretokenizers", document.get("normalizers", []))
    return [document["type"]] + [part["type"] for part in parts]


def _end_ids(document: Mapping[str, Any], path: Path) -> list[int]:
    value = document.get("eos_token_id")
    if value is None:
        return []
    ids = value if isinstance(value, list) else [value]
    if not all(type(i) is int for i in ids):
        raise DamagedTokenizerError(f"{path}: eos_token_id is {value!r}; it must be a token id or a list of them")
    return ids


def _template(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except UnicodeDecodeError as error:
        raise DamagedTokenizerError(f"{path}: not UTF-8: {error}; copy or download the file again") from error


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_object(path, DamagedTokenizerError) if path.is_file() else {}
