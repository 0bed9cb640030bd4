"""Arrays and a JSON text in one file: .npz, or Parquet with a row for each round."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from specjax.errors import SpecjaxError

Contents = tuple[dict[str, Any], dict[str, np.ndarray]]
"""What is no array, as plain values, and the arrays, of one length N."""

ABOUT = "about"
"""The entry of the file that holds what is no array, as JSON."""


def write_npz(file: BinaryIO, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Each array is an entry by its name."""
    contents: dict[str, Any] = {ABOUT: np.array(json.dumps(about)), **arrays}
    np.savez_compressed(file, **contents)


def read_npz(file: BinaryIO) -> Contents:
    """What `write_npz` wrote; raises the errors of `numpy.load` for anything else."""
    with np.load(file, allow_pickle=False) as entries:
        return json.loads(str(entries[ABOUT])), {name: entries[name] for name in entries.files if name != ABOUT}


def write_parquet(file: BinaryIO, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Each array is a column: of numbers, or of lists where it has more axes than one.

    Stands beside `about`: the shapes of the arrays behind N, because a list does not tell two axes apart; and the types
    of arrays without values, which have no column.
    """
    arrow, parquet = _arrow()
    shapes = {name: array.shape[1:] for name, array in arrays.items()}
    columns = {
        name: arrow.FixedSizeListArray.from_arrays(arrow.array(array.reshape(-1)), math.prod(array.shape[1:]))
        if array.ndim > 1
        else arrow.array(array)
        for name, array in arrays.items()
        if array.size or array.ndim == 1
    }
    empty = {name: str(array.dtype) for name, array in arrays.items() if name not in columns}
    table = arrow.table(columns).replace_schema_metadata({ABOUT: json.dumps([about, shapes, empty])})
    parquet.write_table(table, file, write_page_checksum=True)


def read_parquet(file: BinaryIO) -> Contents:
    """What `write_parquet` wrote.

    Raises:
        ValueError, KeyError, TypeError: the file is no Parquet file, or a damaged one, or another one.
    """
    _, parquet = _arrow()
    try:
        table = parquet.read_table(file, page_checksum_verification=True)
    except OSError as error:  # so PyArrow says that pages are damaged
        raise ValueError(str(error)) from error
    about, shapes, empty = json.loads((table.schema.metadata or {})[ABOUT.encode()])
    arrays = {}
    for name, shape in shapes.items():
        if name in empty:
            values = np.zeros(0, empty[name])
        else:
            column = table.column(name).combine_chunks()
            values = (column.flatten() if shape else column).to_numpy(zero_copy_only=False)
        arrays[name] = values.reshape(table.num_rows, *shape)
    return about, arrays


def _arrow() -> tuple[Any, Any]:
    """PyArrow and its part for Parquet."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise SpecjaxError("Parquet files need pyarrow: pip install 'specjax[analysis]', or use a .npz file") from error
    return pyarrow, parquet


Writer = Callable[[BinaryIO, Mapping[str, Any], Mapping[str, np.ndarray]], None]
FORMATS: dict[str, tuple[Writer, Callable[[BinaryIO], Contents]]] = {
    ".npz": (write_npz, read_npz),
    ".parquet": (write_parquet, read_parquet),
}
"""How files are written and read, by the ends of their names."""


def format_of(path: Path) -> tuple[Writer, Callable[[BinaryIO], Contents]]:
    """Writer and reader for a file.

    Raises:
        SpecjaxError: the name does not end as one of them does.
    """
    if path.suffix not in FORMATS:
        raise SpecjaxError(f"{path}: the name of a trace's file must end in {' or '.join(FORMATS)}")
    return FORMATS[path.suffix]
