"""What `specjax bench --json` has written, held beside the limits of the same model and settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from device_rates import Rates
from round_parts import Round

from specjax.state import KVTypes

T = TypeVar("T")

OTHER_MODELS = ("drafter", "draft_vocab", "place", "mesh")
"""Options that make another model of a file, or another drafter."""


@dataclass(frozen=True)
class Measured:
    """A file that `specjax bench --json` has written.

    Attributes:
        path: of the file.
        document: what it says.
    """

    path: Path
    document: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Measured:
        """
        Raises:
            ValueError: the file cannot be read, or is not one of `specjax bench --json`.
        """
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}; give what `specjax bench --json` has written") from error
        if not isinstance(document, dict) or not {"model", "kv_type_k", "kv_type_v", "speeds"} <= document.keys():
            raise ValueError(f"{path} has no speeds of a model; give what `specjax bench --json` has written")
        return cls(path, document)

    @property
    def drafts(self) -> list[int]:
        """The numbers of drafts that were measured. "auto" is none of them: its rounds differ."""
        return [speed["draft"] for speed in self.document["speeds"] if isinstance(speed["draft"], int)]

    def kv_types(self, given: KVTypes | None) -> KVTypes:
        """The types of caches that were measured; those given must be the same.

        Raises:
            ValueError: they are not.
        """
        return self._same("--kv-type", KVTypes(self.document["kv_type_k"], self.document["kv_type_v"]), given)

    def dtype(self, given: str | None) -> str:
        """The type of matrices that are not packed. One that is given must be the same, or the file says none.

        Raises:
            ValueError: it is another one, or nobody says any.
        """
        if (own := self.document.get("dtype", given)) is None:
            raise ValueError(f"{self.path} does not say with which dtype it was measured; give it by --dtype")
        return self._same("--dtype", own, given)

    def check(self, model: str, batch: int, drafts: list[int]) -> None:
        """See that limits are asked for of what was measured.

        Args:
            model: the name of its file or folder.
            batch: sequences of a round.
            drafts: of the rounds.

        Raises:
            ValueError: they are of another model, of several sequences, or of numbers of drafts that are not there; or
                the model was loaded with an option that changes what a round reads.
        """
        if (own := Path(self.document["model"]).name) != model:
            raise ValueError(f"{self.path} has measured {own} and not {model}; give the file that was measured")
        if batch != 1:
            raise ValueError(f"{self.path} has measured rounds of one sequence; --batch is {batch}, leave it out")
        if self.document.get("packed") == "off":
            raise ValueError(f"{self.path} was measured with --packed off, whose limits are not computed here")
        if others := [name for name in OTHER_MODELS if self.document.get(name)]:
            option = f"--{others[0].replace('_', '-')}"
            raise ValueError(f"{self.path} was measured with {option}, whose limits are not computed here")
        if missing := [each for each in drafts if each not in self.drafts]:
            known = ", ".join(map(str, self.drafts))
            raise ValueError(f"{self.path} has no rounds of {missing[0]} drafts; --draft can be {known}")

    def lines(self, each: Round, rates: Rates, arithmetic: str) -> Iterator[str]:
        """For each measured part of a round with as many drafts, which share of the limit it has reached."""
        limits = {
            "round": each.seconds(rates, arithmetic),
            "verify_per_round": each.seconds(rates, arithmetic, drafting=False),
            "draft_per_round": each.seconds(rates, arithmetic, drafting=True),
        }
        speed = next(speed for speed in self.document["speeds"] if speed["draft"] == each.drafts)
        for name, limit in limits.items():
            if seconds := speed[name]:
                label = name.removesuffix("_per_round")
                yield f"  measured {label:<7} {seconds * 1e3:>9.3f} ms, {limit / seconds:>5.0%} of the limit"

    def _same(self, option: str, own: T, given: T | None) -> T:
        if given not in (None, own):
            raise ValueError(f"{self.path} was measured with {own}; {option} is {given}, leave it out")
        return own
