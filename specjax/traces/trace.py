"""A trace: what every round of every text drafted and accepted, and how probable it was."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import numpy as np
from jaxtyping import Bool, Float, Int

from checkpoints.atomic import replaced
from specjax.errors import SpecjaxError
from specjax.traces.events import Round, events_of
from specjax.traces.files import format_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from specjax.traces.replay import WhatIf

NOTHING = -1
"""Stands in arrays of tokens where there is none."""

FORMAT = "specjax-trace-1"
"""Names the layout of the file."""


@dataclass(frozen=True)
class TracedText:
    """A text of a trace.

    Attributes:
        number: names it in `Trace.text`; in a batch, the index of its prompt.
        prompt: the prompt's token ids.
        first: the first token, which the prompt brings and no round.
        settings: the options that it was made with, as plain values.
    """

    number: int
    prompt: tuple[int, ...] = field(repr=False)
    first: int
    settings: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Trace:
    """N rounds of one text or several, those of a text in the order of time. K is the most drafts of any round, and R
    is K + 1. Arrays of tokens hold `NOTHING`, and arrays of numbers NaN, where there is nothing to tell.

    Attributes:
        texts: what the rounds belong to.
        pieces: the bytes of each token that occurs, by its id. Some tokens are parts of characters.
        text: the number of the text.
        round: the number of the round in its text, from 0 on.
        last: the token that the drafts follow: the text's last one before the round.
        position: where it stands in the text, the prompt included.
        hidden_row: the row of the text's round before whose hidden state the drafts start from; -1 for the prompt's.
        depth: the most drafts that the round could have: what the text asked for, or what the program makes if that is
            less.
        n_drafted, n_accepted, n_emitted: drafts that were verified, drafts that stood, tokens that the round emitted.
        source: which of several drafters made the drafts, by its number.
        skipped: whether the row paused after failures.
        hidden_norm: L2 norm of the hidden state that the drafts start from.
        seconds: mean wall-clock time of the rounds that ran in one chunk with this one, in seconds.
        drafts: the drafts that were verified.
        confidence: how sure the drafter was of each.
        p, q, p_next, q_next, entropy: see `specjax.decoding.probabilities`.
        tokens: what the round emitted.
        margin: by how much the largest logit led the second one, at each place that was verified.
        logprob: the log-probability of each emitted token, before temperature and filters.
        top_tokens, top_logprobs: the n most probable tokens at the place of each emitted token, best first, in the same
            terms; n is 0 unless `logprobs` was asked for.
    """

    texts: tuple[TracedText, ...]
    pieces: Mapping[int, bytes] = field(repr=False)
    text: Int[np.ndarray, "N"]
    round: Int[np.ndarray, "N"]
    last: Int[np.ndarray, "N"]
    position: Int[np.ndarray, "N"]
    hidden_row: Int[np.ndarray, "N"]
    depth: Int[np.ndarray, "N"]
    n_drafted: Int[np.ndarray, "N"]
    n_accepted: Int[np.ndarray, "N"]
    n_emitted: Int[np.ndarray, "N"]
    source: Int[np.ndarray, "N"]
    skipped: Bool[np.ndarray, "N"]
    hidden_norm: Float[np.ndarray, "N"]
    seconds: Float[np.ndarray, "N"]
    drafts: Int[np.ndarray, "N K"]
    confidence: Float[np.ndarray, "N K"]
    p: Float[np.ndarray, "N K"]
    q: Float[np.ndarray, "N K"]
    p_next: Float[np.ndarray, "N"]
    q_next: Float[np.ndarray, "N"]
    tokens: Int[np.ndarray, "N R"]
    entropy: Float[np.ndarray, "N R"]
    margin: Float[np.ndarray, "N R"]
    logprob: Float[np.ndarray, "N R"]
    top_tokens: Int[np.ndarray, "N R n"]
    top_logprobs: Float[np.ndarray, "N R n"]

    def __eq__(self, other: object) -> bool:
        """Whether both have the same texts, pieces and arrays. NaN is equal to NaN."""
        if not isinstance(other, Trace):
            return NotImplemented
        theirs = other.arrays()
        return (self.texts, self.pieces) == (other.texts, other.pieces) and all(
            np.array_equal(array, theirs[name], equal_nan=array.dtype.kind == "f")
            for name, array in self.arrays().items()
        )

    def __len__(self) -> int:
        """The number N of rounds."""
        return len(self.text)

    def __repr__(self) -> str:
        per_round = self.n_emitted.mean() if len(self) else 0.0
        return (
            f"Trace({len(self)} rounds of {len(self.texts)} {'text' if len(self.texts) == 1 else 'texts'}:"
            f" {self.n_drafted.sum()} drafts, {self.n_accepted.sum()} accepted, {per_round:.2f} tokens a round)"
        )

    @cached_property
    def strings(self) -> dict[int, str]:
        """The text of each token, by its id; U+FFFD stands for parts of characters."""
        return {token: piece.decode(errors="replace") for token, piece in self.pieces.items()}

    @property
    def reached(self) -> Bool[np.ndarray, "N K"]:
        """Which drafts were judged: those before them in the round were accepted, and the text did not end there."""
        place, accepted = np.arange(self.drafts.shape[1]), self.n_accepted[:, None]
        judged = (place < accepted) | ((place == accepted) & (self.n_emitted > self.n_accepted)[:, None])
        return judged & (place < self.n_drafted[:, None])

    # Parts and wholes

    def __getitem__(self, rounds: Any) -> Trace:
        """Some of the rounds, by whatever NumPy takes as an index of N; the texts stay."""
        index = np.atleast_1d(np.arange(len(self))[rounds])
        return Trace(self.texts, self.pieces, **{name: array[index] for name, array in self.arrays().items()})

    def of_text(self, number: int) -> Trace:
        """The rounds of one text.

        Raises:
            KeyError: there is no such text.
        """
        texts = tuple(text for text in self.texts if text.number == number)
        if not texts:
            raise KeyError(f"no text has the number {number}; there are {[text.number for text in self.texts]}")
        return Trace(texts, self.pieces, **self[self.text == number].arrays())

    @staticmethod
    def join(traces: Sequence[Trace]) -> Trace:
        """Several traces as one. Texts of one number are renumbered, so that all stay apart.

        Raises:
            ValueError: there is none, or something among them is no trace.
        """
        if not traces:
            raise ValueError("there is no trace to join; give at least one")
        if strangers := [index for index, trace in enumerate(traces) if not isinstance(trace, Trace)]:
            raise ValueError(f"number {strangers[0]} is no trace; texts that are generated with trace=True have one")
        texts: list[TracedText] = []
        parts: list[dict[str, np.ndarray]] = []
        for trace in traces:
            arrays, taken = trace.arrays(), {text.number for text in texts}
            numbers = {text.number: text.number for text in trace.texts}
            if taken & numbers.keys():
                numbers = {number: max(taken) + 1 + index for index, number in enumerate(numbers)}
            arrays["text"] = np.array([numbers[number] for number in trace.text.tolist()], np.int32)
            parts.append(arrays)
            texts += [TracedText(numbers[text.number], text.prompt, text.first, text.settings) for text in trace.texts]
        pieces = {token: piece for trace in traces for token, piece in trace.pieces.items()}
        return Trace(tuple(texts), pieces, **joined(parts))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by their names."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("texts", "pieces")}

    # Files

    def save(self, path: str | Path) -> None:
        """Write everything to one file whose name ends in .npz, or in .parquet: Parquet with a row for each round.

        Raises:
            SpecjaxError: the name ends in something else, or pyarrow, which Parquet needs, is not installed.
            OSError: it cannot be written.
            checkpoints.CheckpointError: the disk is full.
        """
        about = {
            "format": FORMAT,
            "texts": [[text.number, text.prompt, text.first, dict(text.settings)] for text in self.texts],
            "pieces": {str(token): piece.decode("latin-1") for token, piece in self.pieces.items()},
        }
        write, _ = format_of(Path(path))
        with replaced(Path(path)) as temporary, temporary.open("wb") as file:
            write(file, about, self.arrays())

    @staticmethod
    def load(path: str | Path) -> Trace:
        """The trace that `save` wrote.

        Raises:
            SpecjaxError: the file holds no trace, its name ends neither in .npz nor in .parquet, or pyarrow is not
                installed for a .parquet file.
            OSError: it cannot be read.
        """
        _, read = format_of(Path(path))
        data = io.BytesIO(Path(path).read_bytes())
        try:
            about, entries = read(data)
            if about["format"] != FORMAT:
                raise SpecjaxError(f"{path}: its format is {about['format']!r}; this version reads {FORMAT!r}")
            arrays = {each.name: entries[each.name] for each in fields(Trace) if each.name not in ("texts", "pieces")}
            texts = tuple(TracedText(number, tuple(prompt), *rest) for number, prompt, *rest in about["texts"])
            pieces = {int(token): piece.encode("latin-1") for token, piece in about["pieces"].items()}
            if len({len(array) for array in arrays.values()}) > 1:
                raise ValueError("arrays of several lengths")
        except SpecjaxError:
            raise
        except Exception as error:  # the errors of NumPy, zipfile and its decompressors have no other base in common
            raise SpecjaxError(f"{path}: not a trace; give a file that Trace.save or --trace FILE.npz wrote") from error
        return Trace(texts, pieces, **arrays)

    def write_events(self, file: TextIO) -> None:
        """Write newline-delimited JSON, two events a round: the format of `specjax.traces.events`."""
        for iteration, each in enumerate(self.rounds()):
            for event in events_of(iteration, each):
                file.write(json.dumps(event, separators=(",", ":")) + "\n")

    def rounds(self) -> Iterator[Round]:
        """What the events of each round tell."""
        for index in range(len(self)):
            n_drafted = int(self.n_drafted[index])
            yield Round(
                text=int(self.text[index]),
                last=int(self.last[index]),
                hidden_row=int(self.hidden_row[index]),
                position=int(self.position[index]),
                hidden_norm=float(self.hidden_norm[index]),
                drafts=self.drafts[index, :n_drafted].tolist(),
                n_accepted=int(self.n_accepted[index]),
                skipped=bool(self.skipped[index]),
            )

    # Tables

    def to_pandas(self, rows: Literal["rounds", "drafts", "tokens"] = "rounds") -> pandas.DataFrame:
        """A table, for which pandas must be installed.

        Args:
            rows: "rounds" has a row for each round; "drafts" one for each draft that was verified, with `place` from 1
                on and whether it was `reached` and `accepted`; "tokens" one for each emitted token, with `place` and
                whether it was `drafted`.

        Raises:
            SpecjaxError: pandas is not installed.
            ValueError: `rows` is something else.
        """
        from specjax.traces.tables import table

        return table(self, rows)

    # What follows from it

    def what_if(
        self,
        k: int,
        p_min: float = 0.0,
        n_min: int = 0,
        *,
        accept: Literal["rejection", "block"] | None = None,
        seconds: float | None = None,
    ) -> WhatIf:
        """What other settings of drafting would have brought on these texts, without running the model.

        It does not say what the coupled rule would bring on texts that were drawn with another one, because this rule
        compares all tokens. Nor does it say it of drafts from another distribution, such as another temperature: of the
        drafter's distribution a trace has the drafts and the text's tokens alone.

        Args:
            k: drafts of a round, at most; no more than the rounds of the trace could make.
            p_min, n_min: see `DraftConfig`. The trace must have been recorded without them.
            accept: another acceptance rule; None for that of each text. Greedy texts are the same under all rules.
            seconds: of a round with these settings, if it is known. The median of the trace is taken where the trace
                has rounds with so many drafts, and neither `p_min` nor `n_min` nor `accept` is given.

        Returns:
            Expected tokens and drafts of a round, and the speed that these come to, with standard errors.

        Raises:
            ValueError: a setting is out of its range, or the trace does not tell.
        """
        from specjax.traces.replay import what_if

        return what_if(self, k, p_min, n_min, accept, seconds)

    def plot(self) -> Figure:
        """A figure of when drafts are accepted: by their place, by where they stand, by what they are; and of time.

        Raises:
            SpecjaxError: matplotlib is not installed.
        """
        from specjax.traces.plots import plot

        return plot(self)

    def _repr_html_(self) -> str:
        """The texts, coloured by how each token was made, for notebooks."""
        from specjax.traces.html import page

        return page(self)


def joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays of several traces one behind the other, padded to the widest."""
    result = {}
    for name in parts[0]:
        arrays = [part[name] for part in parts]
        widest = np.max([array.shape[1:] for array in arrays], axis=0, initial=0).astype(int)
        padding = np.nan if arrays[0].dtype.kind == "f" else NOTHING
        result[name] = np.concatenate(
            [
                np.pad(
                    array,
                    [(0, 0), *((0, wide - have) for wide, have in zip(widest, array.shape[1:], strict=True))],
                    constant_values=padding if array.ndim > 1 else 0,
                )
                for array in arrays
            ]
        )
    return result
