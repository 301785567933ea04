"""A malicious server against a site's policy: every attack is refused, and no row is on the wire."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")
from flwr.app import Message, RecordDict
from typer.testing import CliRunner

from flower.loopback import LoopbackGrid, Node, bytes_of, content_of
from vaneb import InvalidOption
from vaneb.cli import app
from vaneb.files import private_files
from vaneb.flower import journal, ledger, processes, wire
from vaneb.flower.client_app import FAILURES
from vaneb.flower.disclosure import largest_leverage, rows_apart
from vaneb.flower.exchange import Answer, Channel
from vaneb.flower.policy import Policy
from vaneb.flower.privacy import epsilon_of, noise_for
from vaneb.flower.settings import Settings

PLAIN = Settings(formula="response ~ dose", form="constant", wait=0.1, timeout=5.0)
PRIVATE = replace(PLAIN, epsilon=1.0, radius=5.0, se_low=0.05, se_high=2.0)
N = 40
#: Very large at the row whose dose is nearest, and a server may guess one.
POLE = f"(dose - {np.random.default_rng(7).normal(size=N)[17] - 1e-6:.9f})".replace("- -", "+ ")


def above(place: int) -> str:
    """A column that parts the rows between two neighbouring doses."""
    doses = np.sort(np.random.default_rng(7).normal(size=N))
    inner = f"(dose - {doses[place : place + 2].mean():.9f})".replace("- -", "+ ")
    return f"I({inner} / abs({inner}))"


@dataclasses.dataclass
class Site:
    """One client with 40 rows, and whoever asks it."""

    folder: Path
    asked: list[LoopbackGrid] = dataclasses.field(default_factory=list)
    wards: str = ""

    @property
    def data(self) -> Path:
        return self.folder / "rows.csv"

    @property
    def own(self) -> Path:
        return self.folder / "north"

    def rules(self, **rules) -> Site:
        (self.folder / "policy.toml").write_text(replace(Policy(), **rules).text())
        return self

    def ask(self, settings: Settings, kind: str = "report", question: dict | None = None) -> Answer:
        """What comes back over the wire."""
        config = {"data": str(self.data), "client": "north", "folder": str(self.own)}
        config |= {"policy": str(self.folder / "policy.toml"), "wards": self.wards}
        grid = LoopbackGrid({1: Node(config, name="north")}, settings)
        self.asked.append(grid)
        (answer,) = Channel(grid, 5.0).ask(kind, {1: question or {}})
        return answer

    def refuses(
        self, settings: Settings, words: str, kind: str = "report", question: dict | None = None
    ) -> None:
        """No answer but a fixed sentence, which is all that is on the wire; the reason is in the ledger."""
        answer = self.ask(settings, kind, question)
        assert answer.content is None
        sent = [m for way, _, m in self.asked[-1].captured if way == "up"]
        assert [set(content_of(m)) for m in sent] == [{"failed", "token"}]
        assert content_of(sent[0])["failed"] in {text for _, text in FAILURES}
        entry = list(ledger.read_ledger(self.own))[-1]
        assert entry["event"] == "refused"
        assert re.search(words, entry["reason"]), entry["reason"]

    def bytes_up(self) -> bytes:
        return b"".join(bytes_of(m) for grid in self.asked for way, _, m in grid.captured if way == "up")


@pytest.fixture
def site(tmp_path) -> Site:
    rng = np.random.default_rng(7)
    dose = rng.normal(size=N)
    frame = pd.DataFrame(
        {
            "patient": [f"patient{k:03d}" for k in range(N)],
            "ward": ["a"] * 20 + ["b"] * 18 + ["c"] * 2,
            "dose": dose,
            "response": 1 + 2 * dose + rng.normal(size=N),
            "count": rng.poisson(3, size=N),
            "died": [1] * 3 + [0] * (N - 3),
            "secret": rng.normal(size=N),
            "spike": [1e6] + [0.0] * 10 + list(rng.normal(size=N - 11)),
            "days": np.arange(N) * 3.0,
            "trials": [5000] + [8] * (N - 1),
            "hits": [2500] + [3] * (N - 1),
        }
    )
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return Site(tmp_path).rules()


def test_an_honest_question_is_answered_and_written_down_first(site):
    answer = site.ask(PLAIN)
    report = answer.content["report"]
    (own,) = (site.own / "studies").iterdir()
    readable = json.loads((own / "release.json").read_text())
    assert readable["leaves"]["report"]["estimate"] == list(report["estimate"])
    assert readable["asks"]["formula"] == "response~dose"
    (entry,) = ledger.read_ledger(site.own)
    assert (entry["event"], entry["study"], entry["question"]) == ("answered", own.name, "report")


# ---------------------------------------------------------------- twelve attacks and more


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # Ids as a factor: each coefficient is a patient's response.
        ({"formula": "response ~ 0 + C(patient)"}, "coefficients for 40 rows|patient"),
        # As many coefficients as rows: solved for them.
        ({"formula": "response ~ 0 + C(patient) + dose"}, "coefficients for 40 rows|patient"),
        # A level of two rows.
        ({"formula": "response ~ C(ward)"}, "ward.*(2 rows|sets 2)"),
        ({"formula": "response ~ 0 + C(ward)"}, "ward.*(2 rows|sets 2)"),
        # A class of three rows.
        ({"formula": "died ~ dose", "family": "binomial"}, "a class has 3 rows"),
        ({"formula": "response ~ died"}, "died: sets 3 rows apart"),
        # A column in which one row stands alone: its response is the fit's.
        ({"formula": "response ~ dose + spike"}, "leverage of 1.00"),
        # A response in which one row stands alone: the sum is what it has in another column.
        ({"formula": f"I(secret / {POLE}) ~ 1"}, "leverage of 1.00"),
        ({"formula": "exp(9 * secret) ~ dose"}, "leverage of 0.9|leverage of 1.00"),
        # Two columns that part at fewer rows than a level must have.
        ({"formula": f"response ~ {above(14)} + {above(16)}"}, "leverage of 1.00"),
        ({"formula": f"response ~ {above(14)} + {above(18)} + dose"}, "leverage of (1.00|0.9)"),
        # A covariate that is zero but in one row once it is multiplied with another column.
        ({"formula": f"response ~ {above(19)} + secret + I(secret * {above(20)})"}, "leverage of 1.00"),
        ({"formula": f"secret ~ {above(19)} + I(secret * {above(20)}) + response"}, "leverage of 1.00"),
        ({"formula": f"response ~ {above(19)} + secret + I(secret * {above(22)})"}, "leverage of 1.00"),
        # As many sums of a response as there are rows, with weights of the server's choice.
        (
            {"formula": "count ~ 0 + " + " + ".join(f"I(secret * dose ** {k})" for k in range(6))},
            "leverage of",
        ),
        # The same in columns that part in their last digits only.
        ({"formula": "response ~ secret + I(secret * (1 + 1e-9 * dose))"}, "last digits"),
        # Columns so large that their squares run over, or so small that they vanish.
        ({"formula": f"response ~ dose + I(1e200 / {POLE})"}, "leverage of 1.00"),
        ({"formula": f"response ~ dose + I(1e-200 / {POLE})"}, "leverage of 1.00"),
        # Two columns that differ in one row, in the twelfth digit.
        ({"formula": f"response ~ dose + I(dose + 1e-17 / {POLE})"}, "leverage of 1.00"),
        # An offset or a number of trials that makes one row all of a weighted sum.
        ({"formula": "count ~ dose", "family": "poisson", "offset": "days"}, "leverage of"),
        ({"formula": "hits | trials ~ dose", "family": "binomial"}, "leverage of"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_models_from_which_rows_could_be_read(site, changes, words):
    site.refuses(replace(PLAIN, **changes), words)
    assert b"patient0" not in site.bytes_up()
    for mode in ("evaluate", "secure"):
        box = {"lower": "0", "upper": "1", "precision_bound": 1.0}
        site.refuses(replace(PLAIN, **changes, **box, mode=mode), words, "evaluate", {"kind": "describe"})


def test_the_sums_of_a_family_do_not_give_its_responses(site):
    """The Hessian of the gamma family has y exp(-eta) x x': six coefficients, 21 equations, 18 rows."""
    frame, rng = pd.read_csv(site.data).head(18), np.random.default_rng(5)
    for name in ("dose", *"abcd"):
        frame[name] = rng.uniform(-1, 1, size=len(frame))
    frame["pay"] = np.exp(0.3 * frame.dose) * rng.uniform(0.5, 1.5, size=len(frame))
    frame.to_csv(site.data, index=False)
    gamma = replace(PLAIN, family="gamma", form="sums")
    site.refuses(replace(gamma, formula="pay ~ dose + a + b + c + d"), "leverage of 1.00")
    frame = pd.concat([frame] * 3)
    frame = frame.assign(dose=rng.normal(size=54), pay=rng.gamma(2.0, np.exp(rng.normal(size=54) / 3)))
    frame.to_csv(site.data, index=False)
    assert site.ask(replace(gamma, formula="pay ~ dose")).content is not None


def test_no_two_rows_are_compared_alone(site):
    """Where no others are at risk together, the sums over events are the difference of two patients."""
    rng, frame = np.random.default_rng(2), pd.read_csv(site.data)
    frame["time"], frame["event"] = np.arange(1.0, N + 1), 1
    frame.loc[7, "time"] = frame.time[6] + 1e-3
    frame["entry"], frame["from_birth"] = frame.time - 1e-2, rng.uniform(0, 1, N)
    frame.to_csv(site.data, index=False)
    cox = replace(PLAIN, family="cox", form="sums")
    alone = replace(cox, formula="Surv(entry, time, event) ~ dose + secret")
    site.refuses(alone, "1 events with others at risk, and 2 rows; this site wants 5 and 10")
    answer = site.ask(replace(cox, formula="Surv(I(time - 0.01), time, event) ~ dose + secret"))
    assert answer.content is None
    assert "takes columns of the data here" in (site.own / "errors.log").read_text()
    assert site.ask(replace(cox, formula="Surv(from_birth, time, event) ~ dose")).content is not None


def test_rows_are_told_apart_in_each_ward(site):
    """Two rows in each of three wards are six; each ward's sums differ by two."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"ward": np.repeat(["a", "b", "c"], 20), "dose": rng.normal(size=60)})
    frame["response"] = frame.dose + rng.normal(size=60)
    frame["lab"] = rng.normal(size=60)
    frame.loc[[3, 4, 23, 24, 43, 44], "lab"] = np.nan
    frame.to_csv(site.data, index=False)
    site.wards, sums = "ward", replace(PLAIN, form="sums")
    assert site.ask(sums).content is not None
    site.refuses(replace(sums, formula="response ~ dose + I(0 * lab)"), "2 rows differ from those of study")


def test_levels_of_enough_rows_may_part(site):
    """Five rows between two thresholds are as many as a level must have."""
    assert site.ask(replace(PLAIN, formula=f"response ~ {above(14)} + {above(19)}")).content is not None
    site.rules(rows_per_level=1)
    assert site.ask(replace(PLAIN, formula=f"response ~ {above(14)} + {above(16)}")).content is not None


def test_too_few_rows(site):
    frame = pd.read_csv(site.data).head(9)
    frame.to_csv(site.data, index=False)
    site.refuses(PLAIN, "9 rows; this site answers from 10 on")


@pytest.mark.parametrize(
    ("rules", "changes", "words"),
    [
        ({"columns": ("dose", "response")}, {"formula": "response ~ secret"}, "secret"),
        ({"columns": ("dose", "response")}, {"formula": "secret ~ dose"}, "secret"),
        ({"columns": ("dose", "response")}, {"offset": "secret"}, "secret"),
        ({"formulas": ("response ~ dose",)}, {"formula": "response ~ dose + secret"}, "not one of those"),
        ({"formulas": ("response ~ dose",)}, {"formula": "response ~ dose - 1"}, "not one of those"),
        ({"families": ("poisson",)}, {}, "family gaussian"),
        ({"modes": ("secure",)}, {}, "mode reports"),
        ({"epsilon": 1.0}, {}, "epsilon 0: this site lets nothing leave but private"),
        ({"epsilon": 1.0}, {"epsilon": 1.5, "radius": 5.0, "se_low": 0.1, "se_high": 1.0}, "epsilon 1.5"),
        (
            {"epsilon": 1.0},
            {"epsilon": 1.0, "delta": 0.1, "radius": 5.0, "se_low": 0.1, "se_high": 1.0},
            "delta 0.1",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_was_not_agreed(site, rules, changes, words):
    site.rules(**rules).refuses(replace(PLAIN, **changes), words)


def test_spaces_do_not_make_another_formula(site):
    site.rules(formulas=("response ~ dose",))
    assert site.ask(replace(PLAIN, formula="response~dose")).content is not None
    # But they do in the names of columns.
    frame = pd.read_csv(site.data)
    frame.assign(**{"a b": frame.dose, "ab": frame.secret}).to_csv(site.data, index=False)
    site.rules(formulas=("response ~ `a b`",))
    site.refuses(replace(PLAIN, formula="response ~ `ab`"), "not one of those")
    site.refuses(replace(PLAIN, formula="response ~ ab"), "not one of those")
    assert ledger.study_name(replace(PLAIN, formula="y ~ `a b`")) != ledger.study_name(
        replace(PLAIN, formula="y ~ `ab`")
    )


def test_two_releases_do_not_differ_by_a_patient(site):
    """The rows minus one: the same question gets the old answer, another question gets none."""
    first = site.ask(PLAIN).content
    frame = pd.read_csv(site.data)
    frame.drop(index=17).to_csv(site.data, index=False)
    again = site.ask(PLAIN).content
    np.testing.assert_array_equal(again["report"]["estimate"], first["report"]["estimate"])
    assert again["report"]["n"] == first["report"]["n"] == N
    site.refuses(replace(PLAIN, formula="response ~ dose + secret"), "1 rows differ from those of study")
    evaluate = replace(PLAIN, mode="evaluate")
    site.refuses(evaluate, "1 rows differ", "evaluate", {"kind": "local"})
    # A missing value takes a row out as well.
    frame.loc[3, "secret"] = np.nan
    frame.to_csv(site.data, index=False)
    site.refuses(replace(PLAIN, formula="response ~ dose + secret"), "2 rows differ|rows differ")
    # Many rows more are another matter.
    more = pd.concat([frame, frame.assign(dose=frame.dose + 1, patient="new")])
    more.to_csv(site.data, index=False)
    assert site.ask(PLAIN).content["report"]["n"] == 2 * N


def test_other_columns_do_not_make_other_rows(site):
    """A policy that is changed in between does not make the server's question a new one."""
    site.ask(PLAIN)
    frame = pd.read_csv(site.data)
    frame.drop(index=17).to_csv(site.data, index=False)
    site.rules(columns=("dose", "response", "count"))
    site.refuses(replace(PLAIN, formula="count ~ dose"), "1 rows differ")


def test_rows_are_counted_with_their_multiplicity():
    a = np.array([1, 1, 2, 3], np.uint64)
    assert rows_apart(a, a[::-1]) == 0
    assert rows_apart(a, a[1:]) == 1
    assert rows_apart(a, np.array([1, 2, 3, 4], np.uint64)) == 2


def test_leverage_is_the_hat_matrix_whatever_the_scale():
    rng = np.random.default_rng(0)
    design = rng.normal(size=(30, 4))
    expected = np.diag(design @ np.linalg.pinv(design)).max()
    design = design * [1, 1e-7, 1e8, 1]
    assert largest_leverage(design) == pytest.approx(expected, rel=1e-6)
    assert largest_leverage(np.c_[design, design[:, :1]]) == pytest.approx(expected, rel=1e-6)
    assert largest_leverage(np.zeros((5, 2))) == 0


def test_a_likelihood_is_not_traced_without_end(site):
    site.rules(exchanges=4, atoms=50)
    evaluate = replace(PLAIN, mode="evaluate")
    atoms = {"kind": "log_likelihood", "atoms": np.zeros((20, 2))}
    assert site.ask(evaluate, "evaluate", atoms).content is not None
    assert site.ask(evaluate, "evaluate", atoms).content is not None
    site.refuses(evaluate, "atoms: this site answers 50", "evaluate", atoms)
    # Settings that change nothing of the answer make no new study.
    for again in (
        replace(evaluate, iterations=7),
        replace(evaluate, parameters="a,b"),
        replace(evaluate, seed=9),
    ):
        site.refuses(again, "atoms: this site answers 50", "evaluate", atoms)
    for _ in range(2):
        assert site.ask(evaluate, "evaluate", {"kind": "describe"}).content is not None
    site.refuses(evaluate, "exchanges: this site answers 4", "evaluate", {"kind": "describe"})


def test_the_likelihood_of_rows_is_not_given_unless_the_site_says_so(site):
    """Far away it is that of one row: a line in the atom, with the largest dose for its slope."""
    exact = replace(PLAIN, formula="count ~ dose", family="poisson", mode="evaluate", likelihood="exact")
    far = {"kind": "log_likelihood", "atoms": np.array([[0.0, 300.0], [0.0, 301.0]])}
    site.refuses(exact, "likelihood exact: this site answers covariance only", "evaluate", far)
    first, second = site.rules(likelihoods=("exact",)).ask(exact, "evaluate", far).content["values"]
    largest = pd.read_csv(site.data).dose.max()
    assert np.log(second / first) == pytest.approx(largest, abs=1e-6)
    assert site.rules().ask(replace(exact, likelihood="covariance"), "evaluate", far).content is not None


def test_many_models_of_the_same_rows_are_not_answered(site):
    site.rules(studies=2)
    for formula in ("response ~ dose", "response ~ secret", "response ~ dose"):
        assert site.ask(replace(PLAIN, formula=formula)).content is not None
    site.refuses(replace(PLAIN, formula="count ~ dose"), "studies: this site answers 2, and has")
    # What was refused does not count.
    site.rules(studies=3).refuses(replace(PLAIN, formula="response ~ 0 + C(patient)"), "")
    assert site.ask(replace(PLAIN, formula="count ~ dose")).content is not None


def test_refusals_are_no_oracle_without_end(site):
    """A model is refused unless the server's guess of one patient's count is right: so it would be found."""
    site.rules(refusals=5)
    guesses = [replace(PLAIN, formula=f"response ~ I((count - {k}.5) / (days - 50.99))") for k in range(6)]
    for guess in guesses[:5]:
        site.refuses(guess, "leverage")
    site.refuses(guesses[5], "refused 5 studies")
    # What was asked before is answered as before.
    site.refuses(guesses[0], "leverage")


def test_power_sums_of_a_response_are_not_collected(site):
    """Forty of them are forty responses; each model has one coefficient only."""
    site.rules(studies=1000, refusals=1000)
    models = [replace(PLAIN, formula=f"I(abs(dose - {k / 8})) ~ 1") for k in range(-15, 15)]
    answered = [model for model in models if site.ask(model).content is not None]
    # And the intercept: three rows for each column.
    assert 5 < len(answered) <= N / 3 - 1


def test_rows_of_all_that_has_left_are_remembered(site):
    """Back to where it began, but for one row, by way of many."""
    frame = pd.read_csv(site.data)
    site.ask(PLAIN)
    frame.iloc[:30].to_csv(site.data, index=False)
    thirty = site.ask(PLAIN).content
    assert thirty["report"]["n"] == 30
    frame.drop(index=3).to_csv(site.data, index=False)
    assert site.ask(PLAIN).content["report"]["n"] == 30


# ---------------------------------------------------------------- privacy


def test_a_private_question_gets_one_answer_however_often_it_is_asked(site):
    first = site.ask(PRIVATE).content
    same = (
        {},
        {"parameters": "Intercept,dose"},
        {"seed": 3},
        {"formula": "response~dose"},
        {"form": "diagonal"},
    )
    for changes in (*same, {"likelihood": "exact"}, {"method": "x"}, {"refit": True}):
        again = site.ask(replace(PRIVATE, **changes)).content
        np.testing.assert_array_equal(again["report"]["estimate"], first["report"]["estimate"])
    # Nor does another question in between make it forget.
    other = site.ask(replace(PRIVATE, formula="count ~ dose")).content
    assert not np.array_equal(other["report"]["estimate"], first["report"]["estimate"])
    again = site.ask(PRIVATE).content
    np.testing.assert_array_equal(again["report"]["estimate"], first["report"]["estimate"])
    assert b"private" in bytes_of(site.asked[0].captured[-1][2])
    assert "private" not in first


def test_an_exact_answer_does_not_follow_a_private_one(site):
    assert site.ask(PRIVATE).content is not None
    site.refuses(PLAIN, "private releases have left this site")
    site.refuses(replace(PLAIN, formula="count ~ dose"), "private releases have left")
    site.refuses(replace(PLAIN, mode="evaluate"), "private releases", "evaluate", {"kind": "local"})


def test_the_accountant_counts_all_releases(site):
    site.rules(epsilon=1.0, total_epsilon=1.6)
    radii = (5.0, 6.0, 7.0)
    assert site.ask(replace(PRIVATE, radius=radii[0])).content is not None
    assert site.ask(replace(PRIVATE, radius=radii[1])).content is not None
    site.refuses(replace(PRIVATE, radius=radii[2]), r"would have spent 1\.\d+ .*its total is 1\.6")
    noise = noise_for(1.0, 1e-5)
    assert epsilon_of([noise], 1e-5) == pytest.approx(1.0, abs=1e-6)
    assert 1.4 < epsilon_of([noise, noise], 1e-5) < 1.6 < epsilon_of([noise] * 3, 1e-5) < 2.0
    assert epsilon_of([noise_for(2.0, 1e-5), 1e9], 1e-5) == pytest.approx(2.0, abs=1e-6)
    assert epsilon_of([], 1e-5) == 0
    said = CliRunner().invoke(app, ["federate", "ledger", str(site.own)]).output
    assert re.search(r"spent +epsilon 1\.\d+ at delta 1e-05, in 2 private releases", said)
    # What has left has left, also when somebody removes the folders.
    shutil.rmtree(site.own / ledger.STUDIES)
    site.refuses(replace(PRIVATE, radius=radii[0]), r"would have spent 1\.\d+ .*its total is 1\.6")
    site.rules()
    site.refuses(PLAIN, "2 private releases have left this site")


def test_a_private_release_names_no_level(site):
    frame = pd.read_csv(site.data)
    frame.assign(ward=["a", "b"] * (N // 2)).to_csv(site.data, index=False)
    site.refuses(replace(PRIVATE, formula="response ~ C(ward)"), "levels and classes have names")


# ---------------------------------------------------------------- a person decides


def test_nothing_leaves_before_a_person_has_read_it(site):
    site.rules(review=True)
    for _ in range(2):
        answer = site.ask(PLAIN)
        assert answer.reason == "client: its answer waits for a person at the site to release it"
    estimate = json.loads(next(site.own.glob("studies/*/release.json")).read_text())["leaves"]["report"]
    entry = list(ledger.read_ledger(site.own))[-1]
    (study,) = re.findall(r"release (\w{12})'", entry["reason"])
    assert entry["event"] == "held"
    wrong = CliRunner().invoke(app, ["federate", "release", "nonsense", "--folder", str(site.own)])
    assert wrong.exit_code == 2
    assert f"There are {study}." in " ".join(wrong.output.split())
    done = CliRunner().invoke(app, ["federate", "release", study, "--folder", str(site.own)])
    assert done.exit_code == 0, done.output
    assert list(site.ask(PLAIN).content["report"]["estimate"]) == estimate["estimate"]
    # What was not read does not leave: other rows are another release.
    frame = pd.read_csv(site.data)
    frame.assign(dose=frame.dose + 1).to_csv(site.data, index=False)
    assert "waits for a person" in site.ask(PLAIN).reason
    assert "waits for a person" in site.ask(replace(PLAIN, formula="count ~ dose")).reason


def test_what_was_not_read_does_not_take_the_place_of_what_was(site):
    """The server asks for something else while a person reads: they would say yes to that."""
    site.rules(review=True)
    counts = replace(PLAIN, formula="count ~ dose", family="poisson", form="sums")
    population = {"mean": np.zeros(2), "covariance": np.eye(2)}
    assert "waits for a person" in site.ask(counts).reason
    (path,) = site.own.glob("studies/*/release.json")
    read = path.read_text()
    assert "waits for a person" in site.ask(counts, "expand", population).reason
    assert path.read_text() == read
    ledger.approve(site.own, path.parent.name)
    assert "waits for a person" in site.ask(counts, "expand", population).reason
    assert site.ask(counts).content is not None
    # It can be read next, and then it leaves.
    assert "waits for a person" in site.ask(counts, "expand", population).reason
    assert json.loads(path.read_text())["question"] == "expand"
    ledger.approve(site.own, path.parent.name)
    assert site.ask(counts, "expand", population).content is not None


def test_a_study_of_many_exchanges_is_released_as_a_whole(site):
    site.rules(review=True)
    evaluate = replace(PLAIN, mode="evaluate")
    assert "waits" in site.ask(evaluate, "evaluate", {"kind": "describe"}).reason
    ledger.approve(site.own, ledger.study_name(evaluate))
    assert site.ask(evaluate, "evaluate", {"kind": "describe"}).content is not None
    assert site.ask(evaluate, "evaluate", {"kind": "local"}).content is not None


def test_a_ledger_that_was_changed_says_so(site):
    site.ask(PLAIN)
    site.refuses(replace(PLAIN, formula="response ~ 0 + C(patient)"), "")
    site.ask(PLAIN)
    said = CliRunner().invoke(app, ["federate", "ledger", str(site.own)])
    assert said.exit_code == 0
    assert [line.split()[1] for line in said.output.splitlines()[:3]] == ["answered", "refused", "answered"]
    path = site.own / ledger.LEDGER
    lines = path.read_text().splitlines()
    for changed in (
        [lines[0], lines[2]],
        [lines[0], lines[1].replace("patient", "dose"), lines[2]],
        lines[::-1],
        [*lines[:2], "{}"],
    ):
        path.write_text("\n".join(changed) + "\n")
        said = CliRunner().invoke(app, ["federate", "ledger", str(site.own)])
        assert said.exit_code == 2
        assert "is not what was written" in " ".join(said.output.split())


def test_a_ledger_that_a_crash_has_cut_off_is_said(site):
    site.ask(PLAIN)
    path = site.own / ledger.LEDGER
    path.write_bytes(path.read_bytes()[:-20])
    assert site.ask(replace(PLAIN, formula="count ~ dose")).content is None
    assert "ledger was changed" in (site.own / "errors.log").read_text()
    with pytest.raises(InvalidOption, match=r"ledger.jsonl: its last line is not whole.* move it elsewhere"):
        ledger.enter(site.own, "answered")
    path.unlink()
    assert site.ask(replace(PLAIN, formula="count ~ dose")).content is not None


def test_questions_without_end_do_not_fill_the_disk(site, monkeypatch):
    monkeypatch.setattr(journal, "LARGEST", 2000)
    for _ in range(8):
        site.refuses(replace(PLAIN, formula="response ~ 0 + C(patient)"), "")
    assert sum(path.stat().st_size for path in site.own.glob("errors.log*")) < 10_000
    # Nor does the ledger, of which nothing is ever taken out.
    monkeypatch.setattr(ledger, "LARGEST", (site.own / ledger.LEDGER).stat().st_size)
    site.refuses(replace(PLAIN, formula="response ~ 0 + C(patient)"), "")
    for seed in range(20):
        assert site.ask(replace(PLAIN, formula="response ~ 0 + C(patient)", seed=seed)).content is None
    listed = [entry["unlisted"] for entry in ledger.read_ledger(site.own) if "unlisted" in entry]
    assert listed == [1, 2, 4, 8, 16]
    assert site.ask(PLAIN).content is not None


# ---------------------------------------------------------------- the file itself


def test_a_policy_that_cannot_be_read_answers_nothing(site):
    path = site.folder / "policy.toml"
    for text, words in (
        ("modes = [", "cannot be read"),
        ('modes = "all"', "give a list"),
        ('modes = ["everything"]', "'everything' is not one of"),
        ("epsilonn = 1", "'epsilonn' is not known"),
        ("review = 1", "must be true or false"),
        ("fewest_rows = 1.5", "must be a whole number"),
        ("epsilon = -1", "not negative"),
        ("epsilon = nan", "not negative"),
    ):
        path.write_text(text)
        site.refuses(PLAIN, words)
    path.unlink()
    site.refuses(PLAIN, "there is no such policy")


def test_the_file_that_is_written_says_what_holds(tmp_path):
    text = Policy().text()
    (tmp_path / "policy.toml").write_text(text)
    assert Policy.read(tmp_path / "policy.toml") == Policy()
    for field in dataclasses.fields(Policy):
        # Each has its meaning in the line above.
        assert re.search(rf"# \w.*\n{field.name} = ", text), field.name


# ---------------------------------------------------------------- no name from the wire


@pytest.mark.parametrize("name", ["client", "data", "folder", "policy"])
def test_a_run_cannot_name_the_clients_files(site, name):
    """Flower's run settings once made a client report another file and write elsewhere."""
    with pytest.raises(InvalidOption, match=f"{name}: not a setting"):
        Settings.from_run_config({"formula": "y ~ x", name: "/etc/passwd"})

    class Strange(Settings):
        def to_run_config(self):
            return {**super().to_run_config(), name: str(site.folder / "elsewhere")}

    strange = Strange(**vars(PLAIN))
    site.refuses(strange, f"{name}: not a setting")
    assert not (site.folder / "elsewhere").exists()
    assert name not in processes.app_config()


@pytest.mark.parametrize("where", ["model", "algorithm", "state"])
def test_no_code_and_no_file_is_named_by_a_server(site, where):
    pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")
    from vaneb.fl.config import config_from
    from vaneb.fl.data import load_images
    from vaneb.fl.experiment import federate_setting
    from vaneb.flower.network_client import write_client

    mark = site.folder / "mark"
    config = {"data": {"clients": 2, "total": 200}}
    write_client(
        federate_setting(config_from(config), load_images("digits", None)), 0, site.folder / "images"
    )
    text = "[data]\nclients = 2\ntotal = 200\n"
    task = {"do": "update", "algorithm": ["fedavg", {}], "clients": [0], "seeds": [[1]]}
    task |= {"states": [None], "new_states": ["0-1.npz"]}
    if where == "model":
        text += f'[model]\nname = "subprocess:getoutput"\nhead = "x"\noptions = {{ cmd = "touch {mark}" }}\n'
    elif where == "algorithm":
        task["algorithm"] = ["subprocess:getstatusoutput", {"encoding": "utf8"}]
    else:
        task["new_states"] = [f"../../{mark.name}"]
    settings = replace(PLAIN, mode="network", experiment=text, method="fedavg")
    (site.data).unlink()
    (site.folder / "images").rename(site.data)
    words = {"model": "model 'subprocess:", "algorithm": "algorithm 'subprocess:", "state": "two numbers"}
    site.refuses(settings, words[where], "network", {"task": task, "message": {}})
    assert not mark.exists()


def test_without_a_ledger_nothing_leaves_and_nothing_is_told(site):
    site.own.mkdir()
    (site.own / ledger.LEDGER).write_text("damaged\n")
    answer = site.ask(PLAIN)
    assert answer.reason == "client: it failed; its own log says why"
    assert site.asked[-1].errors == []
    (site.own / ledger.LEDGER).unlink()
    (site.own / ledger.LEDGER).mkdir()
    assert site.ask(replace(PLAIN, formula="response ~ 0 + C(patient)")).content is None
    assert site.asked[-1].errors == []


def test_files_of_a_site_are_its_own(site):
    with private_files():
        site.ask(PLAIN)
        site.refuses(replace(PLAIN, formula="response ~ 0 + C(patient)"), "")
    for path in (site.own, *site.own.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_question_that_is_no_question_is_refused(site):
    config = {"data": str(site.data), "client": "north", "folder": str(site.own)}
    grid = LoopbackGrid({1: Node(config, name="north")}, PLAIN)
    for content in (RecordDict(), wire.to_record({"deep": {"kind": []}})):
        grid.push_messages([Message(content, dst_node_id=1, message_type="query.evaluate")])
    assert all("failed" in content_of(m) for way, _, m in grid.captured if way == "up")
