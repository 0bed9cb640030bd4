"""How keys and values are kept in a cache: as floats of three widths, or quantized."""

from pallas_kernels.kv_formats.format import KVFormat
from pallas_kernels.kv_formats.store import KVStore
from pallas_kernels.kv_formats.table import FORMATS, format_named

__all__ = ["FORMATS", "KVFormat", "KVStore", "format_named"]
