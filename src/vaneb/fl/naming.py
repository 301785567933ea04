"""Names in configurations: an entry of a dictionary, or ``"module:attribute"`` for one's own code."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from vaneb.errors import InvalidOption


def look_up(name: str, registry: Mapping[str, Any], kind: str) -> Any:
    """The value that ``name`` stands for; the message of a failure lists the known names."""
    if name in registry:
        return registry[name]
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
