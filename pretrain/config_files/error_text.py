"""Error messages for values that pydantic refuses, with a suggested value."""

import difflib
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from data_prep.common.urls import hide_secrets

_KINDS = {
    "whole number": ("int_parsing", "int_type", "int_from_float", "int_parsing_size"),
    "number": ("float_parsing", "float_type", "bool_as_number"),
    "finite number": ("finite_number",),
    "text": ("string_type", "path_type", "string_unicode"),
    "list": ("list_type", "tuple_type", "set_type"),
    "section of keys": ("dict_type", "model_type", "model_attributes_type"),
}
_KIND_OF = {problem: kind for kind, problems in _KINDS.items() for problem in problems}
_NUMBERS = ("whole number", "number", "finite number")
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
_YAML_PROBLEMS = (  # what PyYAML says, and what that means
    (r"'\\t'", "a tab stands where YAML wants spaces. Indent with spaces."),
    ("mapping values", "a colon stands inside a value. Put the value in quotes, or check the indentation."),
    ("block end", "the indentation does not match the lines above. Align the keys of a section."),
    ("constructor", "a tag such as !!python is not allowed. Remove it."),
    ("document start", "it is not a mapping of sections. Name the config file."),
    ("alias", "a value begins with *. Put it in quotes."),
    ("end of stream", "a quote is not closed. Close it."),
    ("','", "a bracket or brace is not closed. Close it."),
    ("cannot start any token", "a value begins with a character that has a meaning in YAML. Put it in quotes."),
    ("escape character", "a backslash stands in double quotes. Use single quotes."),
    ("unacceptable character", "it has control characters. Name a text file."),
)
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
    given = "but it is empty" if value is None else f"not {value_text(value)}"
    return f"{name} must be {_wanted(problem, context)}, {given}.{f' {hint}' if hint else ''}"


def value_text(value: Any) -> str:
    """A value as a message shows it: text in quotes, shortened and without secrets, YAML's words for the others."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        value = hide_secrets(value)  # before a part of an address is cut off
        return reprlib.repr(value) if len(value) > _LONGEST else repr(value)
    if isinstance(value, Mapping):
        return "a section of keys"
    if isinstance(value, Sequence | set):
        return "a list" if value else "an empty list"
    return _plain(value)


def nearest(word: str, names: Sequence[str], cutoff: float = 0.5) -> str | None:
    """The name that a misspelt word was probably meant to be."""
    lower = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=cutoff)
    return lower[matches[0]] if matches else None


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
    """A value to write instead, if it can be guessed."""
    wanted = _KIND_OF.get(kind, "")
    if wanted == "section of keys" and value is None:
        return "Add keys below it, or remove it."
    if (
        isinstance(value, list | tuple)
        and len(value) == 1
        and wanted not in ("list", "section of keys")
        and not isinstance(value[0], list)
    ):
        return f"Write {_plain(value[0])} without brackets."
    if wanted in _NUMBERS and isinstance(value, str):
        meant = _number(value, whole=wanted == "whole number")
        return "" if meant is None else f"Write {_plain(meant)}."
    if kind in ("less_than", "less_than_equal") and context.get("lt", context.get("le")) <= 1:
        return percent(value)
    if wanted == "list" and isinstance(value, str | int | float) and not isinstance(value, bool):
        return f"Write it in brackets: [{_plain(value)}]."
    if kind in ("literal_error", "enum"):
        return _choice(str(context["expected"]), value)
    if kind in ("bool_parsing", "bool_type", "switch") and isinstance(value, str):
        words = ("true", "false", "auto") if kind == "switch" else ("true", "false")
        return f"Did you mean {word}?" if (word := nearest(value, words)) else ""
    return ""


def _choice(expected: str, value: Any) -> str:
    names = re.split(r", | or ", expected.replace("'", ""))
    if value is False:  # YAML's no, off and false
        value = "none"
    if value is None or isinstance(value, bool | list | Mapping):
        return ""
    word = nearest(str(value), names, 0.7)
    return f"Did you mean {word}?" if word else ""


def percent(value: Any) -> str:
    """The share that was meant where somebody wrote a percentage, as advice; nothing for other numbers."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return ""
    return f"For {_plain(value)} percent, write {_plain(number / 100)}." if 2 <= number < 100 else ""


def _number(text: str, whole: bool) -> int | float | None:
    """The number that a text was meant to be: 15%, 1,000, 1 000, 0,15, '5'."""
    text = re.sub(r"(?<=\d)[,' ](?=\d{3}\b)", "", text.strip(" '\"")).replace(",", ".")
    try:
        number = round(float(text.removesuffix("%")) / (100 if text.endswith("%") else 1), 12)
    except ValueError:
        return None
    if not math.isfinite(number) or (whole and not number.is_integer()):
        return None
    return int(number) if whole else number


def _plain(value: Any) -> str:
    """A number without a needless `.0` or exponent; text is unchanged."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.12g}"
    return str(value) if len(str(value)) <= _LONGEST else reprlib.repr(value)


def yaml_problem(error: Exception) -> str:
    """Describe a YAML error, and how to fix it."""
    problem = str(getattr(error, "problem", None) or error)
    meanings = (said for pattern, said in _YAML_PROBLEMS if re.search(pattern, problem))
    return next(meanings, "check its colons, quotes and indentation.")
