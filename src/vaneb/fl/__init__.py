"""Federated training of networks (install ``vaneb[nn]``).

An algorithm is a value made of pure functions (``algorithm``), one short file each in ``algorithms``.
The engine (``engine``, ``experiment``) owns looping, sampling, worker processes, client states,
checkpoints, evaluation and progress.  Data, partition, shift, models, metrics and results each have
their own module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaneb.fl.personal import load_personal

__all__ = ["load_personal"]


def __getattr__(name: str) -> Any:
    """Torch is imported when it is needed, and not before."""
    if name in __all__:
        from vaneb.fl import personal

        return getattr(personal, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
