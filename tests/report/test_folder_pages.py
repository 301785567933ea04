"""Pages of studies and of federated training: what they say, and how they look in a browser."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner

from browser import has_ink, opened, overflow
from result_folders import result, study_folder, theory_folder, train_folder
from vaneb.cli import app
from vaneb.errors import InvalidOption
from vaneb.fl.results import append_rows
from vaneb.prior import Prior
from vaneb.report import curves_content, study_content, train_content, write_page
from vaneb.report.federation import _prior, _sites
from vaneb.report.server import content_of_folder

# ---------------------------------------------------------------- what they say


def test_a_study(tmp_path):
    content = study_content(study_folder(tmp_path))
    assert "**2 cells** of quadratic with **3 replicates**" in content["sentence"]
    assert "**2 of 2** complete cells" in content["sentence"]
    assert "**1.50 to 1.50**" in content["sentence"]
    panel = content["scenarios"][0]["panels"][0]
    assert panel["places"] == [50, 200]
    assert panel["off"] == ["local"]
    vaneb = next(series for series in panel["rmse"] if series["name"] == "vaneb")
    assert_allclose([point[1] for point in vaneb["points"]], 0.303, rtol=1e-6)
    assert_allclose(vaneb["points"][0][2], 0.003 / np.sqrt(3), rtol=1e-3)
    assert len(content["table"]["rows"]) == 6


def test_the_rates_of_the_theory(tmp_path):
    theory = study_content(theory_folder(tmp_path))["theory"]
    slopes = {tuple(row[:4]): float(row[4]) for row in theory["slopes"]}
    assert slopes["points", "excess", "vaneb", "K"] == -1
    assert slopes["points", "excess", "local", "K"] == 0
    assert slopes["curves", "hellinger", "vaneb", "n"] == 0
    assert len(theory["panels"]) == 8


def test_training(tmp_path):
    content = train_content(train_folder(tmp_path))
    assert "**2 methods** in **1 setting** (digits, 6 clients, alpha 0.1, shift 1)" in content["sentence"]
    assert "With balanced test labels **VANEB-FT (direct)** is best at **80.0%**" in content["sentence"]
    assert "With matched test labels **VANEB-FT (direct)** is best at **90.0%**" in content["sentence"]
    balanced = content["settings"][0]["protocols"][0]
    assert balanced["rounds"][0]["points"] == [[10, 55, 0, "round 10"], [20, 70, 0, "round 20"]]
    assert balanced["methods"][0]["clients"] == [50, 60, 70, 80, 90, 100]
    assert balanced["methods"][0]["worst"] == 50
    assert [(stage["algorithm"], stage["done"], stage["left"]) for stage in content["running"]] == [
        ("fedavg", 5, 30)
    ]
    heads = content["heads"][0]
    assert heads["parameters"] == 40
    # Posterior heads were half of the reported ones, so their distances from each other are too.
    own, mean = np.array(heads["own"]), np.array(heads["mean"])
    assert_allclose(mean - mean[:, :1], (own - own[:, :1]) / 2, atol=1e-4)


def test_a_later_line_of_the_same_seed_replaces_an_earlier_one(tmp_path):
    for mean in (50.0, 60.0):
        append_rows(tmp_path / "results.csv", [result("FedAvg", mean, protocol="balanced")])
    assert train_content(tmp_path)["settings"][0]["protocols"][0]["methods"][0]["mean"] == 60


def test_an_empty_folder_has_nothing_to_show(tmp_path):
    with pytest.raises(InvalidOption, match="nothing of `vaneb train` there yet"):
        content_of_folder(tmp_path)
    with pytest.raises(InvalidOption, match="no results of `vaneb study`"):
        study_content(tmp_path)


def test_training_that_has_only_begun(tmp_path):
    stage = tmp_path / "stages" / "fedavg-1"
    stage.mkdir(parents=True)
    (stage / "stage.json").write_text(json.dumps({"title": "t", "algorithm": "fedavg", "rounds": 20}))
    (stage / "manifest.json").write_text(json.dumps({"history": [{"seconds": 2.0}] * 5}))
    assert "**5 rounds** are done" in content_of_folder(tmp_path)["sentence"]


# ---------------------------------------------------------------- in a browser


@pytest.mark.parametrize("kind", ["study", "theory", "train", "curves"])
def test_they_open_without_a_complaint_or_a_request_and_draw(driver, tmp_path, kind):
    page = tmp_path / "page.html"
    if kind == "curves":
        write_page(page, curves_content())
    else:
        folders = {"study": study_folder, "theory": theory_folder, "train": train_folder}
        write_page(page, content_of_folder(folders[kind](tmp_path)))
    assert opened(driver, page) == []
    assert has_ink(driver, "figure > canvas")
    assert overflow(driver, 360) == 0
    phone = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    cut = driver.execute_script(
        """
        return [...document.querySelectorAll(".plain")]
            .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent);
        """
    )
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert cut == []


def test_names_switch_lines_off(driver, tmp_path):
    page = tmp_path / "page.html"
    write_page(page, study_content(study_folder(tmp_path)))
    opened(driver, page)
    picture = "return document.querySelector('figure figure > canvas').toDataURL()"
    before = driver.execute_script(picture)
    button = driver.find_element("css selector", ".legend button")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert driver.execute_script(picture) != before


# ---------------------------------------------------------------- from the command line


def test_study_and_its_page(tmp_path, driver):
    page = tmp_path / "page.html"
    options = ["--clients", "12,20", "--sweep", "K", "--n-min", "10", "--replicates", "1", "--quiet"]
    options += ["--estimators", "oracle,npeb,local", "--report", str(page)]
    done = CliRunner().invoke(app, ["study", "quadratic", "-o", str(tmp_path / "out"), *options])
    assert done.exit_code == 0, done.output
    assert opened(driver, page) == []
    assert "2 cells" in driver.find_element("id", "sentence").text


def test_training_and_its_page(tmp_path, driver):
    pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    page, config = tmp_path / "page.html", tmp_path / "small.toml"
    config.write_text(
        'methods = ["fedavg", "vaneb_ft_direct"]\n[data]\nname = "digits"\nclients = 5\ntotal = 150\n'
        "test_per_client = 20\n[training]\nrounds = 2\n[fine_tuning]\nepochs = 1\n"
    )
    options = ["-o", str(tmp_path / "out"), "--evaluate-every", "1", "--quiet", "--report", str(page)]
    done = CliRunner().invoke(app, ["train", str(config), *options])
    assert done.exit_code == 0, done.output
    assert opened(driver, page) == []
    assert "5 clients" in driver.find_element("id", "sentence").text
    assert "The heads and their prior" in driver.find_element("id", "main").text
    assert has_ink(driver, "figure > canvas")


def test_sites_without_results_come_first_and_2_before_10():
    outcome = {
        "served": ["clinic 10", "clinic 2"],
        "sites": {"clinic 10": 1, "clinic 2": 4},
        "troubles": [{"client": "x", "lost": "no answer"}],
    }
    expected = [
        ["x", "–", "lost: no answer"],
        ["clinic 2", "4", "has its results"],
        ["clinic 10", "1", "has its results"],
    ]
    assert _sites(outcome) == expected


@pytest.mark.parametrize(("spreads", "opens"), [((2.0, 0.0, 0.5), 2), ((2.0, 0.0, 0.0), 0)])
def test_the_page_of_a_federation_opens_on_what_differs(spreads, opens):
    covariances = np.diag(np.square(spreads))[None]
    prior = Prior([[1.0, 2.0, 3.0]], [1.0], names=("Intercept", "age", "treated"), covariances=covariances)
    assert _prior(prior)["opens"] == opens
