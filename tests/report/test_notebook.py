"""What objects look like in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np

from vaneb import VANEB, Local, Prior, Reports


class Balanced(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def words_of(thing) -> str:
    reader = Balanced()
    reader.feed(thing._repr_html_())
    assert reader.open == []
    return reader.words


def test_reports_prior_posterior_and_certificate():
    reports = Reports(
        [[0.0], [0.5], [4.0]], standard_errors=np.ones((3, 1)), ids=["<a>", "b", "c"], names=["<x>"]
    )
    model = VANEB(population="discrete").fit(reports)
    post = model.personalize(reports)
    assert "<a>" in words_of(reports)
    assert "<a>" in words_of(post)
    assert f"{post.mean[0, 0]:.4g}" in words_of(post)
    assert "<x>" in words_of(model.prior_)
    assert f"{model.certificate_.gap:.3g}" in words_of(model.certificate_)
    assert words_of(VANEB()).startswith("VANEBpopulation'auto'")
    assert f"{model.certificate_.gap:.3g}" in words_of(model)
    assert words_of(Local()) == "Local"


def test_a_smooth_prior_has_a_curve_and_many_atoms_are_counted():
    prior = Prior(np.arange(9.0)[:, None], np.ones(9), np.eye(1))
    assert "polyline" in prior._repr_html_()
    assert "and 4 lighter atoms" in words_of(prior)
    assert "polyline" not in Prior(np.zeros((1, 1)), np.ones(1))._repr_html_()


def test_results_go_out_as_a_table():
    import polars as pl

    reports = Reports([0.0, 1.0, 5.0], standard_errors=[1.0, 1.0, 1.0], ids=["a", "b", "c"])
    post = VANEB().fit(reports).personalize(reports)
    assert pl.from_arrow(post.table())["client"].to_list() == ["a", "b", "c"]
    assert post.table(0.5).to_pandas()["lower_1"].iloc[0] > post.table(0.9).to_pandas()["lower_1"].iloc[0]
