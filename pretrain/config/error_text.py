"""Error messages for values that pydantic refuses, with a suggested value."""

import difflib
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

_KINDS = {
    "whole number": ("int_parsing", "int_type", "int_from_float", "int_parsing_size"),
    "number": ("float_parsing", "float_type", "bool_as_number"),
    "finite number": ("finite_number",),
    "text": ("string_type", "path_type", "string_unicode"),
    "list": ("list_type", "tuple_type", "set_type"),
    "section of keys": ("dict_type", "model_type", "model_attributes_type"),
}
_KIND_OF = {problem: kind for kind, problems in _KINDS.items() for problem in problems}
_BOUNDS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "multiple_of": "a multiple of {multiple_of}",
}
_LENGTHS = {
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
}
_LONGEST = 60  # characters of a value that a message shows


def value_refusal(name: str, problem: Mapping[str, Any]) -> str:
    """One or two sentences for one of pydantic's problems: what `name` must be, what it is, and what to write.

    `problem` is an item of `ValidationError.errors()`.
    """
    context, value = problem.get("ctx") or {}, problem["input"]
    if problem["type"] == "value_error":
        message = problem["msg"].removeprefix("Value error, ")
        return f"{name}: {message}" if name else message
    if value == "" and context.get("min_length") == 1:
        return f"{name} must not be empty."
    if problem["type"] in ("too_short", "too_long"):
        least, most = context.get("min_length"), context.get("max_length")
        bound = f"at least {least}" if problem["type"] == "too_short" else f"at most {most}"
        return f"{name} has {context['actual_length']} values, but it must have {bound}."
    if problem["type"] in _BOUNDS and isinstance(value, str):  # of a number on a command line
        value = float(value)
    hint = _suggestion(problem["type"], context, value)
    return f"{name} must be {_wanted(problem, context)}, {_not(value)}.{f' {hint}' if hint else ''}"


def shown(value: Any) -> str:
    """A value as a message shows it: text in quotes and shortened, YAML's words for the others."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return reprlib.repr(value) if len(value) > _LONGEST else repr(value)
    if isinstance(value, Mapping):
        return "a section of keys"
    if isinstance(value, Sequence | set):
        return "a list" if value else "an empty list"
    return _plain(value)


def nearest(word: str, names: Sequence[str], cutoff: float = 0.5) -> str | None:
    """The name that a misspelt word was probably meant to be."""
    lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=cutoff)
    return lower[found[0]] if found else None


def _not(value: Any) -> str:
    return "but it is empty" if value is None else f"not {shown(value)}"


def _wanted(problem: Mapping[str, Any], context: Mapping[str, Any]) -> str:
    """Describe an allowed value: `a whole number`, `1 or more`, `bf16, fp16 or fp32`."""
    kind = problem["type"]
    if kind in _KIND_OF:
        return f"a {_KIND_OF[kind]}".replace("a text", "text")
    if kind in ("bool_parsing", "bool_type"):
        return "true or false"
    if kind in ("literal_error", "enum"):
        return str(context["expected"]).replace("'", "")
    if kind in _BOUNDS or kind in _LENGTHS:
        return (_BOUNDS | _LENGTHS)[kind].format(**{name: _plain(bound) for name, bound in context.items()})
    message = str(problem["msg"])
    for start in ("Input should be ", "it must be "):
        message = message.removeprefix(start)
    return message


def _suggestion(kind: str, context: Mapping[str, Any], value: Any) -> str:
    """What to write instead, where that can be guessed."""
    if kind in ("less_than", "less_than_equal") and context.get("lt", context.get("le")) <= 1:
        return percent(value)
    if kind in ("list_type", "tuple_type") and isinstance(value, str | int | float):
        return f"Write it in brackets: [{_plain(value)}]."
    if kind == "string_type" and isinstance(value, bool | int | float):  # YAML reads yes, no, on and off as booleans
        return "Put it in quotes."
    if kind in ("literal_error", "enum"):
        names = re.split(r", | or ", str(context["expected"]).replace("'", ""))
        word = "none" if value is False else value  # YAML's no, off and false
        near = nearest(word, names, 0.7) if isinstance(word, str) else None
        return f"Did you mean {near}?" if near else ""
    return ""


def percent(value: Any) -> str:
    """The share that was meant where somebody wrote a percentage, as advice; nothing for other numbers."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return ""
    return f"For {_plain(value)} percent, write {_plain(number / 100)}." if 2 <= number < 100 else ""


def _plain(value: Any) -> str:
    """A number without a needless `.0` or exponent; text is unchanged."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.12g}"
    return str(value) if len(str(value)) <= _LONGEST else reprlib.repr(value)
