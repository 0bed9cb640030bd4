"""The model families that can be read and written, and how each maps to file formats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from checkpoints.config_numbers import check_numbers
from checkpoints.errors import ConfigError, UnknownArchitectureError
from checkpoints.mapping import RuleTable
from checkpoints.rules import (
    dense,
    dense_gguf,
    dense_hf,
    gemma4,
    gemma4_assistant,
    gemma4_gguf,
    gemma4_hf,
    qwen3_5,
    qwen3_5_gguf,
    qwen3_5_hf,
    step3_5,
    step3_5_gguf,
    step3_5_hf,
)
from checkpoints.source import TensorInfo
from pallas_kernels import using
from pallas_kernels.override import AUTO
from specjax.models.dense import DenseConfig
from specjax.models.gemma4 import Gemma4AssistantConfig, Gemma4Config
from specjax.models.qwen3_5 import Qwen35Config
from specjax.models.step3_5 import Step35Config

Config = DenseConfig | Gemma4AssistantConfig | Gemma4Config | Qwen35Config | Step35Config
ConfigReader = Callable[[Mapping[str, Any], Mapping[str, TensorInfo], str], Config]


@dataclass(frozen=True)
class Family:
    """One model family.

    Attributes:
        config_type: its config class.
        gguf_architectures: values of `general.architecture`.
        hf_model_types: values of `model_type` in config.json.
        config_from_gguf, config_from_hf: (metadata or config.json, tensor table, file name) -> config.
        config_to_gguf, config_to_hf: config -> metadata or config.json.
        gguf_rules, hf_rules: (config, tensor names of the file; empty when writing) -> the rule table.
    """

    config_type: type
    gguf_architectures: tuple[str, ...]
    hf_model_types: tuple[str, ...]
    config_from_gguf: ConfigReader
    config_to_gguf: Callable[[Any], dict[str, Any]]
    gguf_rules: Callable[[Any, Collection[str]], RuleTable]
    config_from_hf: ConfigReader
    config_to_hf: Callable[[Any], dict[str, Any]]
    hf_rules: Callable[[Any, Collection[str]], RuleTable]


FAMILIES = (
    Family(
        config_type=DenseConfig,
        gguf_architectures=("llama", "qwen3"),
        hf_model_types=("llama", "qwen3"),
        config_from_gguf=dense_gguf.config_from_gguf,
        config_to_gguf=dense_gguf.config_to_gguf,
        gguf_rules=dense.gguf_rules,
        config_from_hf=dense_hf.config_from_hf,
        config_to_hf=dense_hf.config_to_hf,
        hf_rules=dense.hf_rules,
    ),
    Family(
        config_type=Gemma4Config,
        gguf_architectures=("gemma4",),
        hf_model_types=("gemma4", "gemma4_text"),
        config_from_gguf=gemma4_gguf.config_from_gguf,
        config_to_gguf=gemma4_gguf.config_to_gguf,
        gguf_rules=gemma4.gguf_rules,
        config_from_hf=gemma4_hf.config_from_hf,
        config_to_hf=gemma4_hf.config_to_hf,
        hf_rules=gemma4.hf_rules,
    ),
    Family(
        config_type=Gemma4AssistantConfig,
        gguf_architectures=("gemma4-assistant", "gemma4_assistant"),
        hf_model_types=("gemma4_assistant",),
        config_from_gguf=gemma4_assistant.config_from_gguf,
        config_to_gguf=gemma4_assistant.config_to_gguf,
        gguf_rules=gemma4_assistant.gguf_rules,
        config_from_hf=gemma4_assistant.config_from_hf,
        config_to_hf=gemma4_assistant.config_to_hf,
        hf_rules=gemma4_assistant.hf_rules,
    ),
    Family(
        config_type=Qwen35Config,
        gguf_architectures=("qwen35", "qwen35moe"),
        hf_model_types=("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        config_from_gguf=qwen3_5_gguf.config_from_gguf,
        config_to_gguf=qwen3_5_gguf.config_to_gguf,
        gguf_rules=qwen3_5.gguf_rules,
        config_from_hf=qwen3_5_hf.config_from_hf,
        config_to_hf=qwen3_5_hf.config_to_hf,
        hf_rules=qwen3_5.hf_rules,
    ),
    Family(
        config_type=Step35Config,
        gguf_architectures=("step35",),
        hf_model_types=("step3p5", "step3p7"),
        config_from_gguf=step3_5_gguf.config_from_gguf,
        config_to_gguf=step3_5_gguf.config_to_gguf,
        gguf_rules=step3_5.gguf_rules,
        config_from_hf=step3_5_hf.config_from_hf,
        config_to_hf=step3_5_hf.config_to_hf,
        hf_rules=step3_5.hf_rules,
    ),
)


def family_of_gguf(architecture: str | None, where: str) -> Family:
    """The family of a `general.architecture`; `UnknownArchitectureError` names the known ones."""
    return _find(architecture, "architecture", lambda family: family.gguf_architectures, where)


def family_of_hf(model_type: str | None, where: str) -> Family:
    """The family of a `model_type` of config.json; `UnknownArchitectureError` names the known ones."""
    return _find(model_type, "model_type", lambda family: family.hf_model_types, where)


def model_of_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str
) -> tuple[Config, RuleTable]:
    """The model that a GGUF describes, and the rules for its tensors.

    Args:
        metadata: every key of the file.
        tensors: its tensor table.
        where: its name, for messages.

    Raises:
        UnknownArchitectureError: none of those that are known.
        ConfigError: the metadata describe no model.

    Warns:
        MissingMTPWarning: a head is declared, and absent.
    """
    architecture = metadata.get("general.architecture")
    if (kind := metadata.get("general.type", "model")) != "model":
        raise UnknownArchitectureError(f"{where}: a GGUF of the type {kind!r}, and no model")
    family = family_of_gguf(architecture, where)
    with _no_model(where):
        _check_layers(metadata.get(f"{architecture}.block_count"), tensors)
        config = family.config_from_gguf(metadata, tensors, where)
        check_numbers(config, tensors, where)
        return config, family.gguf_rules(config, tensors.keys())


def model_of_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> tuple[Config, RuleTable]:
    """The model that a config.json describes, and the rules for its tensors; see `model_of_gguf`."""
    family = family_of_hf(document.get("model_type"), where)
    with _no_model(where):
        text = document.get("text_config")
        _check_layers((text if isinstance(text, Mapping) else document).get("num_hidden_layers"), tensors)
        config = family.config_from_hf(document, tensors, where)
        check_numbers(config, tensors, where)
        return config, family.hf_rules(config, tensors.keys())


def family_of_config(config: Config) -> Family:
    """The family that a config object belongs to."""
    return next(family for family in FAMILIES if isinstance(config, family.config_type))


@contextmanager
def _no_model(where: str) -> Iterator[None]:
    """Numbers of the wrong kind or size come to light at many places, up to the shapes of the parameters.

    Shapes are those of any kernels: a wrong choice of kernels, which is no fault of the file, is said by what computes.
    """
    try:
        with using(AUTO):
            yield
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise ConfigError(f"{where}: the metadata describe no model: {error}; download or convert it again") from error


def _check_layers(count: Any, tensors: Mapping[str, TensorInfo]) -> None:
    """A damaged count would fill the memory with layers."""
    if isinstance(count, (int, float)) and count > len(tensors):
        raise ValueError(f"{count} layers are declared, but there are only {len(tensors)} tensors")


def _find(name: str | None, what: str, names_of: Callable[[Family], tuple[str, ...]], where: str) -> Family:
    for family in FAMILIES:
        if name in names_of(family):
            return family
    known = ", ".join(known for family in FAMILIES for known in names_of(family))
    raise UnknownArchitectureError(f"{where}: {what} {name!r} is not known; known are {known}")
