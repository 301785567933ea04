"""Failures of federated training that a user can do something about."""

from __future__ import annotations

from vaneb.errors import VanebError


class MissingData(VanebError, FileNotFoundError):
    """A data file is not where it was looked for; the message says where to get it."""


class TrainingFailed(VanebError, RuntimeError):
    """A run cannot go on: every client diverged, or a worker process died."""
