"""Tables of a trace, for pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specjax.errors import SpecjaxError

if TYPE_CHECKING:
    import pandas

    from specjax.traces.trace import Trace

OF_A_ROUND = (
    *("text", "round", "last", "position", "depth", "n_drafted", "n_accepted", "n_emitted", "source", "skipped"),
    *("hidden_norm", "seconds", "p_next", "q_next"),
)


def table(trace: Trace, rows: str) -> pandas.DataFrame:
    """The table that `Trace.to_pandas` describes."""
    kinds = {"rounds": rounds_table, "drafts": drafts_table, "tokens": tokens_table}
    if rows not in kinds:
        raise ValueError(f"rows is {rows!r}; known are {', '.join(map(repr, kinds))}")
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise SpecjaxError("tables need pandas, which is not installed: pip install 'specjax[analysis]'") from error
    return kinds[rows](trace)


def rounds_table(trace: Trace) -> pandas.DataFrame:
    """A row for each round."""
    import pandas

    return pandas.DataFrame({name: getattr(trace, name) for name in OF_A_ROUND})


def drafts_table(trace: Trace) -> pandas.DataFrame:
    """A row for each draft that was verified."""
    import pandas

    places = np.arange(trace.drafts.shape[1])
    round_, place = np.nonzero(places < trace.n_drafted[:, None])
    accepted = place < trace.n_accepted[round_]
    return pandas.DataFrame(
        {
            "text": trace.text[round_],
            "round": trace.round[round_],
            "position": trace.position[round_] + place + 1,
            "place": place + 1,
            "token": trace.drafts[round_, place],
            "string": [trace.strings.get(token, "") for token in trace.drafts[round_, place].tolist()],
            "reached": trace.reached[round_, place],
            "accepted": accepted,
            "source": trace.source[round_],
            **{name: getattr(trace, name)[round_, place] for name in ("confidence", "p", "q", "entropy", "margin")},
        }
    )


def tokens_table(trace: Trace) -> pandas.DataFrame:
    """A row for each token that a round emitted."""
    import pandas

    places = np.arange(trace.tokens.shape[1])
    round_, place = np.nonzero(places < trace.n_emitted[:, None])
    return pandas.DataFrame(
        {
            "text": trace.text[round_],
            "round": trace.round[round_],
            "position": trace.position[round_] + place + 1,
            "place": place + 1,
            "token": trace.tokens[round_, place],
            "string": [trace.strings.get(token, "") for token in trace.tokens[round_, place].tolist()],
            "drafted": place < trace.n_accepted[round_],
            **{name: getattr(trace, name)[round_, place] for name in ("logprob", "entropy", "margin")},
        }
    )
