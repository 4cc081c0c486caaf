"""Check the arguments of functions that users call, with the messages that values of a config get."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from pydantic import ConfigDict, ValidationError, validate_call
from pydantic_core import to_jsonable_python

from data_prep.common.errors import UserError
from pretrain.config_files import on_one_line, value_refusal

PathLike = str | os.PathLike[str]
"""A path, a `Run` or a `DataSet`; of a data set also a URL."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Have a function refuse arguments that do not fit its annotations with UserError, before it begins."""
    signature = inspect.signature(function)
    call: Callable[..., Result] = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)

    @functools.wraps(function)
    def refusing(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        bound = signature.bind(*args, **kwargs)  # a wrong name raises TypeError, in Python's words
        try:
            return call(**bound.arguments)
        except ValidationError as error:
            if error.title.rpartition(".")[2] != function.__name__:
                raise
            problem = error.errors()[0]
            raise UserError(value_refusal(str(problem["loc"][0]), problem)) from None

    return refusing


def as_paths(paths: PathLike | Sequence[PathLike]) -> list[str]:
    """One path or several, as text."""
    return [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


def override_words(overrides: Mapping[str, Any] | None) -> list[str]:
    """Values of a config, by key, as the `section.key=value` of a command line.

    Raises:
        UserError: a config cannot hold such a value.
    """
    values = to_jsonable_python(dict(overrides or {}), fallback=_plain)
    return [f"{key}={on_one_line(value)}" for key, value in values.items()]


def _plain(value: Any) -> Any:
    """A number of numpy, or a path, as a value of YAML."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):
        return value.item()
    raise UserError(f"A config cannot hold a {type(value).__name__}. Write numbers, texts, lists and mappings.")
