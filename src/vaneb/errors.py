"""Errors that a user can do something about.  Each message names the place and the remedy."""

from __future__ import annotations


class VanebError(Exception):
    """Base of all errors raised on purpose by this package."""


class InvalidReport(VanebError, ValueError):
    """A client's report, or a table of them, cannot be what it claims to be."""


class InvalidOption(VanebError, ValueError):
    """An option is out of its range or does not fit the others."""
