"""One evaluation on several machines: each does a part of the prompts, and the result files are merged.

A prompt's draws are keyed by its id and its seed, so that the parts together are the results of one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from specjax.errors import SpecjaxError
from specjax.evaluation.prompts import BadPrompt, PromptLine, parse_prompts, samples_of
from specjax.evaluation.results import ResultFile, differences, fingerprint_of_bytes, key_of
from specjax.runtime.options import GenerateOptions

SETTING = "shard"
"""What the settings of a result file call the shard that it has."""


@dataclass(frozen=True)
class Shard:
    """A part of the prompts: every N-th of them. Its text is "I/N".

    Attributes:
        number: I, from 1 to N.
        of: N, how many shards there are.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """A shard from its text.

        Raises:
            ValueError: there is no such shard.
        """
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ValueError(f"{text!r} is no shard; give I/N, such as 2/4 for the second of four")
        return cls(int(number), int(of))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, line: PromptLine | BadPrompt) -> bool:
        """Whether the line belongs to this shard."""
        return line.index % self.of == self.number - 1


def merge(parts: Sequence[Path], prompts: bytes, name: str, out: Path) -> ResultFile:
    """Put the result files of all shards together, in the order of the prompts.

    What comes out is the result file of a run without shards. A run without shards takes it up, for example to write a
    report. What is in it already stays, so a merge that was stopped can be repeated.

    Args:
        parts: the result files, in any order.
        prompts, name: the contents and the name of the prompt file.
        out: the file to write.

    Raises:
        SpecjaxError: a file is not of a shard, the files do not belong together or to these prompts, or a shard or
            results are missing. Nothing is written then.
        PromptError: `prompts` is no prompt file.
        OSError: a file cannot be read or written.
    """
    shards = _by_shard([ResultFile.begun(path) for path in parts])
    first = next(iter(shards.values()))
    settings = first.settings | {SETTING: None}
    if settings["prompts"] != fingerprint_of_bytes(prompts):
        raise SpecjaxError(f"{first.path} was made from other prompts than {name} has now; give the file of its run")
    results = list(_complete(shards, _texts(prompts, name, settings)))
    merged = ResultFile(out, settings)
    with merged:
        for result in results:
            if key_of(result) not in merged.results:
                merged.append(result)
    return merged


def _by_shard(files: Sequence[ResultFile]) -> dict[Shard, ResultFile]:
    """The files by what they have: each shard is there once."""
    shards: dict[Shard, ResultFile] = {}
    first = files[0]
    for file in files:
        if not file.settings.get(SETTING):
            raise SpecjaxError(f"{file.path} is not of a shard: its run had no --shard")
        shard = Shard.parse(file.settings[SETTING])
        if found := differences(first.settings | {SETTING: None}, file.settings | {SETTING: None}):
            raise SpecjaxError(f"{file.path} and {first.path} are of runs with other settings: {'; '.join(found)}")
        if shard in shards:
            raise SpecjaxError(f"{file.path} and {shards[shard].path} are both of shard {shard}; leave one out")
        shards[shard] = file
    of, *others = {shard.of for shard in shards}
    if others:
        raise SpecjaxError(f"the files are of runs in {' and in '.join(map(str, sorted((of, *others))))} shards")
    if missing := [str(shard) for number in range(of) if (shard := Shard(number + 1, of)) not in shards]:
        raise SpecjaxError(f"results of shard {', '.join(missing)} are not among the files; run them, and give all")
    return shards


def _texts(prompts: bytes, name: str, settings: Mapping[str, Any]) -> list[PromptLine | BadPrompt]:
    """What a run with these settings is to write a result for, in order."""
    bad: list[BadPrompt] = []
    lines = parse_prompts(prompts, name, bad)
    texts = samples_of(lines, GenerateOptions(temperature=settings["temperature"]), settings["samples"])
    return sorted([*texts, *bad], key=lambda line: line.index)


def _complete(shards: Mapping[Shard, ResultFile], texts: Sequence[PromptLine | BadPrompt]) -> Iterator[dict[str, Any]]:
    """The results of all texts. A prompt with an error has one result, however many samples were asked for."""
    missing: dict[Shard, list[PromptLine | BadPrompt]] = {}
    for text in texts:
        shard = next(shard for shard in shards if shard.has(text))
        results = shards[shard].results
        if text.key in results:
            yield results[text.key]
        elif "error" not in results.get((text.id, 0), {}):
            missing.setdefault(shard, []).append(text)
    if missing:
        said = "; ".join(
            f"{len(lacking)} of shard {shard} ({shards[shard].path}), such as that of prompt {lacking[0].id!r}"
            for shard, lacking in missing.items()
        )
        raise SpecjaxError(f"results are missing: {said}. The same command as before does what is left of a shard")
