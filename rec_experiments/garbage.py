"""When Python's garbage collector rests. It looks for cycles among all objects there are, and here
are hundreds of thousands that stay: modules, and what is read from many runs."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def none_collected() -> Iterator[None]:
    """While objects are made that stay. Processes that are forked within do without it too."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


@contextlib.contextmanager
def old_objects_at_rest() -> Iterator[None]:
    """It passes over what there is now: to look at the 400 thousand objects of the modules once
    costs a fifth of a second."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
