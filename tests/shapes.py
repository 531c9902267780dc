"""Checks the shapes of tensors at every call during the tests.

The suffix of a tensor's name declares its shape: `logp_BT` has two dimensions (the letters are
listed in `common/batch.py`). Within one call each letter has one value, in all arguments and
in the fields of dataclasses and named tuples; 1 is a dimension of size 1. Names without a suffix
and local variables are not checked.

The letters of `self` are not compared with those of a method's arguments, so that a method can
select rows. Only a method whose name has a suffix is compared with its object.
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, autograd

from rec_experiments import algo

MODULES = (
    "rec_experiments.common.batch",
    *(f"rec_experiments.algo.{module.name}" for module in pkgutil.iter_modules(algo.__path__)),
    "rec_experiments.policy.logprobs",
    "rec_experiments.training.metrics",
    "rec_experiments.training.policies",
    "rec_experiments.training.gradient",
    "pieces",
)


class ShapeError(AssertionError):
    """A tensor does not have the shape that its name declares."""


def suffix(name: str) -> str:
    """The dimensions in a name, such as BT; empty for none and for a CONSTANT."""
    found = re.fullmatch(r"_*[a-z]\w*_([A-Z][A-Z0-9]*)", name)
    return found[1] if found else ""


def watch() -> None:
    """Check every call in MODULES from now on, also of functions that were imported before."""
    modules = [importlib.import_module(name) for name in MODULES]
    replaced = {}
    for module in modules:
        for value in list(vars(module).values()):
            if getattr(value, "__module__", None) != module.__name__:
                continue  # imported from elsewhere
            if type(value) is FunctionType:
                replaced[value] = checked(value)
            elif isinstance(value, type):
                watch_methods(value)
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if type(value) is FunctionType and value in replaced:
                    setattr(module, name, replaced[value])


def watch_methods(cls: type) -> None:
    """In place: those that the class itself defines, and how it is constructed."""
    if issubclass(cls, autograd.Function) or getattr(cls, "_is_protocol", False):
        return
    for name, value in list(vars(cls).items()):
        if name.startswith("__") and name not in ("__init__", "__new__", "__call__"):
            continue
        if isinstance(value, FunctionType):
            setattr(cls, name, checked(value, method=True))
        elif isinstance(value, property):
            setattr(cls, name, property(checked(value.fget, method=True), doc=value.__doc__))
        elif isinstance(value, staticmethod | classmethod):
            setattr(cls, name, type(value)(checked(value.__func__)))


def checked(function: Callable, method: bool = False) -> Callable:
    """The function, refusing arguments and a result that contradict their names.

    Itself where no name in its signature has a suffix: a wrapper would keep its arguments alive.
    method: its first argument is an object with letters of its own.
    """
    parameters = inspect.signature(function).parameters
    if not any(map(suffix, (function.__name__, *parameters))):
        return function
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    skip = 1 if method and not suffix(function.__name__) else 0

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        sizes = Sizes(f"{function.__module__}.{function.__qualname__}")
        given = dict(zip(names, args, strict=False)) | kwargs
        for name, value in islice(given.items(), skip, None):
            sizes.read(name, value)
        result = function(*args, **kwargs)
        sizes.read(function.__name__, result)
        return result

    return call


class Sizes:
    """What each letter is in one call, and which tensor said so."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.known: dict[str, tuple[int, str]] = {}

    def read(self, name: str, value: object) -> None:
        """Raises ShapeError if a tensor, or one in the fields of `value`, contradicts its name."""
        if isinstance(value, Tensor):
            self._compare(name, tuple(value.shape))
        for field, inner in _fields(value):
            self.read(f"{name}.{field}", inner)

    def _compare(self, name: str, shape: tuple[int, ...]) -> None:
        letters = suffix(name.rpartition(".")[2])
        found = f"{self.where}: {name} has shape {shape}"
        if letters and len(letters) != len(shape):
            raise ShapeError(f"{found}, not {' x '.join(letters)}")
        for letter, size in zip(letters, shape, strict=False):
            said = (int(letter), "the name") if letter.isdigit() else (size, name)
            expected, by = self.known.setdefault(letter, said)
            if size != expected:
                raise ShapeError(f"{found}, but {letter} is {expected} by {by}")


def _fields(value: object) -> Iterator[tuple[str, object]]:
    """Of a dataclass or a named tuple, as far as they are set."""
    names = getattr(value, "_fields", ())
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    if not isinstance(value, type):
        yield from ((name, getattr(value, name)) for name in names)
