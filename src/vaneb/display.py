"""How objects look in a notebook, asked of the pages above them only when a notebook shows one."""

from __future__ import annotations


class Shown:
    """An object that ``vaneb.report.notebook`` has a small table or picture of."""

    def _repr_html_(self) -> str:
        from vaneb.report.notebook import html_of

        return html_of(self)
