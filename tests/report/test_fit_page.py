"""The page of a fit in a real browser."""

from __future__ import annotations

import csv
import io
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from browser import has_ink, opened, overflow
from vaneb import VANEB, Prior, Reports
from vaneb.cli import app
from vaneb.covariance import by_name
from vaneb.report import fit_content, write_page
from vaneb.tables import write_reports

CLIENTS = 120


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    return made_page(tmp_path_factory.mktemp("page"), 2)


@pytest.fixture(scope="module", params=[1, 3, 5])
def page_of(request, tmp_path_factory) -> tuple[Path, int]:
    """Pages of fits with other numbers of parameters, and these numbers."""
    return made_page(tmp_path_factory.mktemp("page"), request.param), request.param


def made_page(folder: Path, d: int) -> Path:
    rng = np.random.default_rng(d)
    theta = np.where(rng.random((CLIENTS, 1)) < 0.5, 0.0, 3.0) * np.ones(d)
    errors = 0.5 + rng.random(theta.shape)
    estimates = theta + errors * rng.standard_normal(theta.shape)
    estimates[7] = 50.0
    ids = [f"site {k}" for k in range(CLIENTS - 1)] + ["<b>bold</b>"]
    write_reports(folder / "reports.csv", Reports(estimates, standard_errors=errors, n=9, ids=ids))
    made = folder / "page.html"
    done = CliRunner().invoke(
        app,
        ["personalize", str(folder / "reports.csv"), "-o", str(folder / "out.csv"), "--report", str(made)],
    )
    assert done.exit_code == 0, done.output
    return made


def ids_shown(driver) -> list[str]:
    return driver.execute_script(
        "return [...document.querySelectorAll('.table .row .cell.client')].map((cell) => cell.textContent)"
    )


def unfold(driver) -> None:
    """Open what is folded away, and let it be drawn."""
    driver.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    driver.execute_async_script(
        "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(arguments[0], 50)))"
    )


def column(driver, name: str) -> list[str]:
    return driver.execute_script(
        f"return [...document.querySelectorAll('.table .row .cell.{name}')].map((cell) => cell.textContent)"
    )


def test_it_opens_without_a_complaint_or_a_request_and_draws(driver, page):
    assert opened(driver, page) == []
    assert f"{CLIENTS} clients" in driver.find_element("id", "sentence").text
    unfold(driver)
    assert has_ink(driver, "figure > canvas")
    assert page.stat().st_size < 1_000_000


def test_in_any_dimension(driver, page_of):
    page, parameters = page_of
    assert opened(driver, page) == []
    check_controls(driver, parameters)
    assert overflow(driver, 360) == 0


def test_it_fits_on_a_phone(driver, page):
    opened(driver, page)
    assert overflow(driver, 360) == 0


def test_sorting(driver, page):
    opened(driver, page)
    driver.find_element("css selector", '[data-column="client"]').click()
    assert ids_shown(driver)[:4] == ["<b>bold</b>", "site 0", "site 1", "site 2"]  # and 2 before 10
    header = driver.find_element("css selector", '[data-column="shrinkage"]')
    header.click()
    down = [float(text.rstrip("%")) for text in column(driver, "shrinkage")]
    assert down == sorted(down, reverse=True)
    assert header.get_attribute("aria-sort") == "descending"
    header.click()
    up = [float(text.rstrip("%")) for text in column(driver, "shrinkage")]
    assert up == sorted(up)
    assert up[0] < down[0]


def test_searching_and_flags(driver, page):
    opened(driver, page)
    search = driver.find_element("css selector", 'input[type="search"]')
    search.send_keys("SITE 11")
    assert sorted(ids_shown(driver), key=lambda name: int(name.split()[1])) == [
        "site 11",
        *(f"site {k}" for k in range(110, 119)),
    ]
    assert "10 of 120" in driver.find_element("css selector", ".found").text
    search.clear()
    search.send_keys("unexplained")
    assert ids_shown(driver) == ["site 7"]
    search.clear()
    search.send_keys("no such client")
    assert ids_shown(driver) == []


def test_what_is_downloaded_is_what_was_written(driver, page):
    opened(driver, page)
    text = driver.execute_async_script(
        """
        const done = arguments[0], make = URL.createObjectURL;
        URL.createObjectURL = (blob) => { blob.text().then(done); return make(blob); };
        document.querySelector("button.csv").click();
        """
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    with open(page.with_name("out.csv"), newline="") as file:
        written = {row["client"]: row for row in csv.DictReader(file)}
    assert {row["client"] for row in rows} == written.keys()
    for row in rows:
        there = written[row["client"]]
        # The table is rounded to a thousandth of a standard deviation or finer.
        assert abs(float(row["theta_1"]) - float(there["theta_1"])) <= 1e-3 * float(there["sd_1"])
        assert row["flag"] == written[row["client"]]["flag"]


def test_controls_change_the_pictures(driver, page):
    opened(driver, page)
    check_controls(driver, 2)
    driver.find_element("id", "theme").click()
    assert driver.find_element("css selector", "html").get_attribute("data-theme") in ("dark", "light")
    assert driver.get_log("browser") == []


def check_controls(driver, parameters: int) -> None:
    """Every choice can be made and draws something; of one parameter there is nothing to choose."""
    unfold(driver)
    names = driver.execute_script(
        "return [...document.querySelectorAll('select')].map((s) => s.dataset.name)"
    )
    assert ("clients:parameter" in names) == (parameters > 1)
    for name in names:
        driver.execute_script(
            """
            const select = document.querySelector(`select[data-name="${arguments[0]}"]`);
            select.value = select.options.length - 1;
            select.dispatchEvent(new Event("change"));
            """,
            name,
        )
    for number in range(len(driver.find_elements("css selector", ".segments button"))):
        driver.find_elements("css selector", ".segments button")[number].click()
        driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        assert has_ink(driver, "figure > canvas")


def test_on_a_phone_clients_are_cards_with_nothing_cut_off(driver, page):
    opened(driver, page)
    phone = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    driver.refresh()
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    cut, boxes = driver.execute_script(
        """
        const cells = [...document.querySelectorAll(".table .cell")].filter((each) => each.offsetWidth);
        const rows = [...document.querySelectorAll(".table .row")].map((row) => row.getBoundingClientRect());
        return [
            cells.filter((each) => each.scrollWidth > each.clientWidth + 1
                || each.getBoundingClientRect().bottom > each.parentNode.getBoundingClientRect().bottom
            ).map((each) => each.className),
            rows.map((row) => [row.left, row.right, row.top, row.bottom]),
        ];
        """
    )
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert cut == []
    assert len(boxes) > 5
    assert all(0 <= left < right <= 360 for left, right, _, _ in boxes)
    assert all(above[3] <= below[2] for above, below in pairwise(boxes))


def test_diagnostics_are_folded_away_and_the_pictures_come_first(driver, page):
    opened(driver, page)
    titles = driver.execute_script(
        "return [...document.querySelectorAll('h2, summary')].map((e) => e.textContent)"
    )
    assert titles[0] == "Which clients differ"
    assert titles[-1] == "How good the fit is"
    assert not driver.find_element("css selector", "details").get_attribute("open")
    first = driver.find_elements("css selector", "figure > canvas")[:2]
    assert [each.get_attribute("aria-label") for each in first] == ["Caterpillar plot", "Funnel plot"]
    assert "Nonparametric Empirical Bayes" in driver.find_element("css selector", ".paper").text


def test_it_prints_with_a_table(driver, page):
    opened(driver, page)
    assert len(driver.print_page()) > 20_000
    shown = driver.execute_script("return document.querySelectorAll('.printed tbody tr').length")
    assert shown == CLIENTS


def test_ten_thousand_clients_stay_responsive(driver, tmp_path):
    rng = np.random.default_rng(0)
    count = 10_000
    prior = Prior(rng.standard_normal((30, 3)), np.ones(30), 0.05 * np.eye(3))
    reports = Reports(
        prior.sample(count, rng) + rng.standard_normal((count, 3)), standard_errors=np.ones((count, 3))
    )
    model = VANEB.from_prior(prior)
    page = tmp_path / "page.html"
    write_page(page, fit_content(model, model.personalize(reports), reports))
    assert opened(driver, page) == []
    assert len(ids_shown(driver)) < 60  # only the rows in sight are there
    timed = """
        const begin = performance.now(), done = arguments[0];
        %s;
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin)));
        """
    actions = {
        "sort": "document.querySelector('[data-column=\"shrinkage\"]').click()",
        "search": "const s = document.querySelector('input[type=\"search\"]'); s.value = '99';"
        "s.dispatchEvent(new Event('input'))",
        "scroll": "document.querySelector('.table').scrollTop = 5e4",
    }
    for name, action in actions.items():
        # Milliseconds; a few dozen on a quiet machine, and the limit is what a busy one may need.
        assert driver.execute_async_script(timed % action) < 2000, name


def test_bad_names_of_pages_are_refused_before_any_work(tmp_path):
    table = tmp_path / "reports.csv"
    write_reports(table, Reports([1.0, 2.0], standard_errors=[1.0, 1.0]))
    for name, message in (("page.pdf", "must end in .html"), ("no/page.html", "does not exist")):
        done = CliRunner().invoke(
            app, ["personalize", str(table), "-o", str(tmp_path / "o.csv"), "--report", str(tmp_path / name)]
        )
        assert done.exit_code == 2
        assert message in " ".join(done.output.split())
        assert not (tmp_path / "o.csv").exists()


def test_no_cell_is_cut_off_on_a_desk_where_clients_are_many(driver, tmp_path):
    rng = np.random.default_rng(1)
    count = 12_000
    own = rng.normal(-1.5, 1.2, count)
    table = Reports(
        own, standard_errors=rng.uniform(0.2, 1.2, count), ids=[f"store {k:05d}" for k in range(count)]
    )
    model = VANEB.from_prior(Prior([[-1.5]], [1.0], [[1.0]]))
    page = tmp_path / "page.html"
    write_page(page, fit_content(model, model.personalize(table), table, client="store"))
    assert opened(driver, page) == []
    assert cut_off(driver) == []
    assert column(driver, "own")[0].count(".") == 3  # the same decimals for an estimate and its interval
    driver.execute_script("document.querySelector(arguments[0]).click()", "[data-column=after]")
    assert column(driver, "rank")[0].count(",") == 3


def test_rates_and_their_intervals_are_not_cut_off(driver, tmp_path):
    rng = np.random.default_rng(2)
    cases = rng.integers(60, 2_000, 60)
    table = Reports(
        rng.binomial(cases, 0.12)[:, None] / cases[:, None], n=cases, covariance=by_name("binomial", 1, 60)
    )
    model = VANEB.from_prior(Prior([[0.12]], [1.0], [[0.0004]]))
    page = tmp_path / "page.html"
    write_page(page, fit_content(model, model.personalize(table), table, client="hospital"))
    assert opened(driver, page) == []
    assert cut_off(driver) == []
    assert re.fullmatch(r"\d+\.\d% \(\d+\.\d% to \d+\.\d%\)", column(driver, "after")[0])


def cut_off(driver) -> list[str]:
    return driver.execute_script(
        """
        return [...document.querySelectorAll(".table .cell")]
            .filter((cell) => cell.scrollWidth > cell.clientWidth + 1).map((cell) => cell.textContent);
        """
    )
