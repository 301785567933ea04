"""Names in configurations: an entry of a dictionary, or ``"module:attribute"`` for one's own code.

One's own code is for configurations of one's own.  What comes from another machine is read inside
``known_names_only``, where nothing is imported.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from vaneb.errors import InvalidOption

_known_only: ContextVar[bool] = ContextVar("known_only", default=False)


@contextlib.contextmanager
def known_names_only() -> Iterator[None]:
    """In this block a name stands for an entry of a dictionary, and for nothing else."""
    token = _known_only.set(True)
    try:
        yield
    finally:
        _known_only.reset(token)


def look_up(name: str, registry: Mapping[str, Any], kind: str) -> Any:
    """The value that ``name`` stands for; the message of a failure lists the known names."""
    if name in registry:
        return registry[name]
    if _known_only.get():
        raise InvalidOption(
            f"{kind} {name!r:.60} is not known. A federation takes {', '.join(registry)}, and no code."
        )
    module, colon, attribute = name.partition(":")
    if not colon:
        raise InvalidOption(
            f"{kind} {name!r} is not known. Use one of {', '.join(registry)}, or 'module:name' for your own."
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidOption(
            f"{kind} {name!r}: {error}. The module must be importable from where the run is started."
        ) from None
