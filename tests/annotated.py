"""A type checker for jaxtyping that looks at arrays alone: kinds and shapes are as the annotations say."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
from jaxtyping import AbstractArray, AnnotationError


def check_calls_of(package: str) -> None:
    """Check all calls of the functions of a package. It must not have been imported yet.

    jaxtyping's hook puts `jaxtyped` around every function, and that binds the arguments of each call, checked or not.
    Most functions do not speak of arrays, and are left as they are. So are dataclasses: JAX makes them of whatever it
    maps over a tree.
    """
    jaxtyped = jaxtyping.jaxtyped

    def where_arrays_are(*, typechecker: Callable) -> Callable[[Any], Any]:
        return lambda target: jaxtyped(target, typechecker=typechecker) if _has_arrays(target) else target

    jaxtyping.jaxtyped = where_arrays_are  # type: ignore[assignment]
    jaxtyping.install_import_hook(package, "annotated.checked")


def _has_arrays(target: Any) -> bool:
    if not isinstance(target, types.FunctionType):
        return False
    return any(_speaks_of_arrays(_evaluated(hint, target)) for hint in target.__annotations__.values())


def _evaluated(hint: Any, function: types.FunctionType) -> Any:
    """What an annotation says, where its names are known already. jaxtyping does not check others either."""
    try:
        return eval(hint, function.__globals__) if isinstance(hint, str) else hint
    except Exception:
        return Any


def checked(function: Callable) -> Callable:
    """The function, which raises `TypeError` for an argument or a result that is not as annotated.

    An axis letter stands for one number within a call.
    """
    signature = inspect.signature(function)
    hints = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    hints = {name: hint for name, hint in hints.items() if _speaks_of_arrays(hint)}
    returns = signature.return_annotation if _speaks_of_arrays(signature.return_annotation) else None
    if not hints and returns is None:
        return function

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        for name, hint in hints.items():
            if name in given:
                _check(given[name], hint, name)
        result = function(*args, **kwargs)
        if returns is not None:
            _check(result, returns, "the result")
        return result

    return wrapper


def _is_array(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, AbstractArray)


def _speaks_of_arrays(hint: Any) -> bool:
    return _is_array(hint) or (
        typing.get_origin(hint) in (tuple, typing.Union, types.UnionType)
        and any(map(_speaks_of_arrays, typing.get_args(hint)))
    )


def _check(value: Any, hint: Any, name: str) -> None:
    if not _fits(value, hint):
        shape = f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else repr(value)
        raise TypeError(f"{name} is {shape}, not {hint}")


@functools.cache
def _of_any_library(kind: Any, axes: str) -> Any:
    """NumPy's arrays are as good as JAX's."""
    return kind[Any, axes]


def _fits(value: Any, hint: Any) -> bool:
    if _is_array(hint):
        try:
            return isinstance(value, _of_any_library(hint.dtype, hint.dim_str))
        except AnnotationError:  # of "B W-1", where no argument tells W, the rest
            axes = (axis if axis.isidentifier() else "_" for axis in hint.dim_str.split())
            return isinstance(value, _of_any_library(hint.dtype, " ".join(axes)))
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(
            _fits(value, option)
            if _speaks_of_arrays(option)
            else not isinstance(option, type) or isinstance(value, option)
            for option in arguments
        )
    if typing.get_origin(hint) is tuple and _speaks_of_arrays(hint):
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(_fits, value, arguments))
    return True
