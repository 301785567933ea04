"""Results as one self-contained page: results -> plain numbers -> HTML with everything in it.

    vaneb.report.write_page("page.html", vaneb.report.fit_content(model, post, reports))

``fit_content``, ``grouped_content``, ``study_content`` and ``train_content`` turn results into plain numbers
and text (JSON); ``page`` puts those, the style sheet and the scripts of ``assets`` into one HTML file that
loads nothing.
"""

from vaneb.report.embed import page, write_page
from vaneb.report.federation import federation_content
from vaneb.report.fit import fit_content, grouped_content
from vaneb.report.study import curves_content, study_content
from vaneb.report.train import train_content

__all__ = [
    "curves_content",
    "federation_content",
    "fit_content",
    "grouped_content",
    "page",
    "study_content",
    "train_content",
    "write_page",
]
