"""Make a page of every kind from simulated data, and take its picture in headless Chromium.

    python benchmarks/pages/pages.py FOLDER                      # all pages
    python benchmarks/pages/pages.py FOLDER schools run          # only these
    python benchmarks/pages/pages.py FOLDER --pictures docs/pictures

Pages that are in FOLDER already are not made again.  Pictures need selenium, Pillow, chromium and
chromedriver.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def schools(rng: np.random.Generator) -> pd.DataFrame:
    """The eight schools of Rubin (1981)."""
    effect, se = [28, 8, -3, 7, -1, 1, 18, 12], [15, 10, 16, 11, 9, 11, 10, 18]
    return pd.DataFrame({"school": list("ABCDEFGH"), "effect": effect, "se": se})


def hospitals(rng: np.random.Generator) -> pd.DataFrame:
    """Deaths among the cases of 60 hospitals; seven have more deaths than the others."""
    cases = np.exp(rng.uniform(np.log(60), np.log(2000), 60)).astype(int)
    logit = np.where(np.arange(60) % 9 == 4, -1.9, -2.6) + 0.15 * rng.standard_normal(60)
    deaths = rng.binomial(cases, 1 / (1 + np.exp(-logit)))
    towns = ["Nord", "Süd", "Ost", "West", "Mitte", "Hafen"]
    names = [f"{towns[k % 6]} {k // 6 + 1}" for k in range(60)]
    return pd.DataFrame({"hospital": names, "cases": cases, "mortality": deaths / cases})


def counts(rng: np.random.Generator) -> pd.DataFrame:
    """Accidents per thousand person-years in 120 districts."""
    years = np.exp(rng.uniform(np.log(5), np.log(300), 120)).round(1)
    rate = rng.gamma(6.0, 0.5, 120)
    return pd.DataFrame(
        {"district": np.arange(1, 121), "years": years, "rate": (rng.poisson(rate * years) / years).round(6)}
    )


def trials(rng: np.random.Generator) -> pd.DataFrame:
    """Odds ratios of 14 trials with confidence limits, as a paper prints them."""
    towns = ["Oslo", "Turin", "Leeds", "Porto", "Gent", "Lyon", "Basel"]
    towns += ["Graz", "Turku", "Malmö", "Riga", "Cork", "Nice", "Bonn"]
    log_ratio = np.where(rng.random(14) < 1 / 3, -0.9, 0.0) + 0.1 * rng.standard_normal(14)
    se = rng.uniform(0.15, 0.6, 14)
    estimate = log_ratio + se * rng.standard_normal(14)
    limits = {"OR": estimate, "lower": estimate - 1.96 * se, "upper": estimate + 1.96 * se}
    return pd.DataFrame({"trial": towns} | {name: np.exp(value).round(2) for name, value in limits.items()})


def ten(rng: np.random.Generator) -> pd.DataFrame:
    """Ten effects of each of 150 clinics, which are of two kinds."""
    kind = (rng.random(150) < 0.3)[:, None]
    effects = np.where(kind, np.linspace(0, 2, 10), 0.0) + 0.3 * rng.standard_normal((150, 10))
    se = rng.uniform(0.2, 0.9, (150, 10))
    table = {"clinic": [f"clinic {k:03d}" for k in range(150)]}
    names = ["age", "sex", "smoking", "weight", "pressure", "sugar", "distance", "season", "dose", "delay"]
    for j, name in enumerate(names):
        table[f"b_{name}"] = (effects[:, j] + se[:, j] * rng.standard_normal(150)).round(4)
        table[f"se_{name}"] = se[:, j].round(4)
    return pd.DataFrame(table)


def stores(rng: np.random.Generator) -> pd.DataFrame:
    """Price elasticity in 20,000 stores of two kinds."""
    truth = np.where(rng.random(20_000) < 0.2, -3.0, -1.2) + 0.3 * rng.standard_normal(20_000)
    se = rng.uniform(0.2, 1.2, 20_000)
    own = truth + se * rng.standard_normal(20_000)
    names = [f"store {k:05d}" for k in range(20_000)]
    return pd.DataFrame({"store": names, "elasticity": own.round(4), "se": se.round(4)})


def run(rng: np.random.Generator) -> pd.DataFrame:
    """Patients of 40 clinics, cured or not, by age and treatment."""
    clinic = np.repeat(np.arange(40), rng.integers(15, 80, 40))
    level, effect = rng.normal(-0.3, 0.6, 40), rng.normal(0.8, 0.5, 40)
    age, treated = rng.integers(25, 80, len(clinic)), rng.integers(0, 2, len(clinic))
    logit = level[clinic] + effect[clinic] * treated - 0.02 * (age - 50)
    cured = (rng.random(len(clinic)) < 1 / (1 + np.exp(-logit))).astype(int)
    test = (rng.random(len(clinic)) < 0.3).astype(int)
    names = [f"clinic {k + 1}" for k in range(40)]
    return pd.DataFrame(
        {
            "clinic": [names[k] for k in clinic],
            "age": age,
            "treated": treated,
            "cured": cured,
            "test": test,
        }
    )


TRAIN = """methods = ["local_only", "fedavg", "fedavg_ft", "vaneb_ft"]
[data]
name = "digits"
clients = 20
[training]
rounds = 12
"""


@dataclass(frozen=True)
class Page:
    """Data, and the command that makes NAME.html of them (in the folder with the data)."""

    command: str
    data: Callable[[np.random.Generator], pd.DataFrame] | None = None
    made: str = ""
    """Where the command leaves the page, if not in NAME.html."""


PAGES = {
    "schools": Page("personalize schools.csv -o schools_out.csv --report schools.html", schools),
    "hospitals": Page(
        "personalize hospitals.csv --estimate mortality --n cases --variance-function binomial "
        "-o hospitals_out.csv --report hospitals.html",
        hospitals,
    ),
    "counts": Page(
        "personalize counts.csv --client district --estimate rate --n years --variance-function poisson "
        "-o counts_out.csv --report counts.html",
        counts,
    ),
    "trials": Page("personalize trials.csv -o trials_out.csv --report trials.html", trials),
    "ten": Page(
        "personalize ten.csv --estimate 'b_*' --se 'se_*' -o ten_out.csv --report ten.html",
        ten,
    ),
    "stores": Page(
        "personalize stores.csv --estimate elasticity --se se -o stores_out.csv --report stores.html", stores
    ),
    "run": Page(
        "run run.csv --client clinic --formula 'cured ~ age + treated' --family binomial "
        "--test-column test -o run_out.csv --report run.html",
        run,
    ),
    "study": Page(
        "study poisson --sweep K --clients 25,50,100 --replicates 2 "
        "--estimators oracle,vaneb,npeb,fedavg,local -o study --report study.html"
    ),
    "train": Page("train train.toml -o train --report train.html"),
    "federation": Page(
        "federate simulate --data run.csv --client clinic --formula 'cured ~ age + treated' "
        "--family binomial --folder federation",
        run,
        made="federation/federation.html",
    ),
}
PHONE = {"width": 390, "height": 1000, "deviceScaleFactor": 1, "mobile": True}
DESK = {"width": 1200, "height": 1150, "deviceScaleFactor": 1, "mobile": False}


def make(name: str, folder: Path) -> None:
    page, target = PAGES[name], folder / f"{name}.html"
    if target.exists():
        return
    if page.data is not None:
        table = "run.csv" if page.data is run else f"{name}.csv"
        page.data(np.random.default_rng(7)).to_csv(folder / table, index=False)
    if page.made:  # a run of before would be resumed, and the page would show less
        shutil.rmtree((folder / page.made).parent, ignore_errors=True)
    if name == "train":
        (folder / "train.toml").write_text(TRAIN, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "vaneb", *shlex.split(page.command)], cwd=folder, check=True)
    if page.made:
        shutil.copy(folder / page.made, target)


def browser() -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for switch in (
        *("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"),
        *("disable-background-networking", "disable-component-update", "no-first-run"),
    ):
        options.add_argument(f"--{switch}")
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def pictures(names: list[str], folder: Path, to: Path, whole: bool) -> Iterator[Path]:
    """A picture of each page on a desk, light and dark, and on a phone; of the whole page if asked."""
    to.mkdir(parents=True, exist_ok=True)
    driver = browser()
    try:
        for name in names:
            for kind, screen in (("light", DESK), ("dark", DESK), ("phone", PHONE)):
                driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
                scheme = "dark" if kind == "dark" else "light"
                driver.execute_cdp_cmd(
                    "Emulation.setEmulatedMedia",
                    {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
                )
                driver.get((folder / f"{name}.html").resolve().as_uri())
                if whole:
                    driver.execute_script(
                        "document.querySelectorAll('details').forEach((d) => d.open = true)"
                    )
                    tall = driver.execute_script("return document.documentElement.scrollHeight")
                    driver.execute_cdp_cmd(
                        "Emulation.setDeviceMetricsOverride", {**screen, "height": int(tall)}
                    )
                driver.execute_async_script(
                    "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(arguments[0], 200)))"
                )
                target = to / f"{name}-{kind}.png"
                driver.save_screenshot(str(target))
                yield target
    finally:
        driver.quit()


def smaller(path: Path) -> None:
    """256 colours are enough for a page."""
    from PIL import Image

    picture = Image.open(path).convert("RGB")
    picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PAGES))
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="take pictures and leave them there")
    parser.add_argument("--whole", action="store_true", help="pictures of whole pages, unfolded")
    asked = parser.parse_args()
    names = asked.names or list(PAGES)
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        make(name, asked.folder)
    if asked.pictures:
        for path in pictures(names, asked.folder, asked.pictures, asked.whole):
            smaller(path)
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
