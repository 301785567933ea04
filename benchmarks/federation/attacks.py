"""Attacks on a site, each against a keeper in a process of its own: what came back, byte by byte.

    python benchmarks/federation/attacks.py > benchmarks/federation/attacks.md

The attacker has what a malicious server has, and more: it speaks to the keeper itself, as an app at the site
that was made to run its code.  Every byte that leaves the keeper is kept and searched for the rows: for their
numbers as eight bytes and as text, and for the names of patients.  Strangers at the door, and foreign apps on
real nodes, are in ``tests/flower/live``.
"""

from __future__ import annotations

import datetime
import json
import platform
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from flwr.app import Message
from flwr.common.serde import user_config_to_proto
from flwr.proto.run_pb2 import GetRunResponse, Run
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from vaneb.flower import ledger, mailbox, processes, wire
from vaneb.flower.gate import Gate
from vaneb.flower.keeper import open_keeper
from vaneb.flower.policy import Policy
from vaneb.flower.settings import Settings

N = 40
ASK = Settings(formula="response ~ dose", form="constant")
PRIVATE = replace(ASK, epsilon=1.0, radius=5.0, se_low=0.05, se_high=2.0)
#: Next to nothing at the row whose dose is this, which a server may guess.
POLE = f"(dose - {np.random.default_rng(7).normal(size=N)[17] - 1e-6:.9f})".replace("- -", "+ ")
POWERS = " + ".join(f"I(dose ** {k})" for k in range(1, 20))


class Outcome(NamedTuple):
    """Of one attack."""

    name: str
    said: str
    """All that the attacker was told."""
    reason: str
    """What the site's ledger says."""
    sent: bytes
    """All that left the keeper."""
    found: int
    """Numbers and names of rows in it."""


@dataclass
class Site:
    """A keeper, its files, and what has left it."""

    folder: Path
    address: str = ""
    number: int = 0
    wards: str = ""

    @property
    def data(self) -> Path:
        return self.folder / "rows.csv"

    @property
    def own(self) -> Path:
        return self.folder / "north"

    def config(self) -> dict[str, str]:
        files = {"data": self.data, "folder": self.own, "policy": self.folder / "policy.toml"}
        return {"client": "north", "wards": self.wards, **{name: str(path) for name, path in files.items()}}

    def rules(self, **rules: Any) -> None:
        (self.folder / "policy.toml").write_text(replace(Policy(), **rules).text())

    def ask(
        self, run: dict[str, Any] | Settings, kind: str = "report", question: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """The answer, and its bytes."""
        self.number += 1
        text = {**(question or {}), "token": "t"}
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, self.number, 5
        message = Message(wire.to_record(text), dst_node_id=5, message_type=f"query.{kind}", ttl=60.0)
        message.metadata.__dict__ |= {"_message_id": f"m{self.number}", "_run_id": self.number}
        config = run.to_run_config() if isinstance(run, Settings) else run
        answer = mailbox.carried(self.address, message, config)
        if isinstance(answer, str):
            return {"failed": answer}, answer.encode()
        parts = get_all_nested_objects(answer)
        return wire.from_record(answer.content), b"".join(part.deflate() for part in parts.values())

    def answered(self, settings: Settings) -> None:
        """An honest question, which some attacks begin with."""
        content, _ = self.ask(settings)
        assert "failed" not in content, content

    def found(self, sent: bytes) -> int:
        frame = pd.read_csv(self.data)
        numbers = frame[["dose", "response", "secret"]].to_numpy().ravel()
        needles = [one.tobytes() for one in numbers] + [repr(float(one)).encode() for one in numbers]
        needles += [name.encode() for name in frame.patient]
        return sum(needle in sent for needle in needles)


def site_in(folder: Path) -> Site:
    rng = np.random.default_rng(7)
    dose = rng.normal(size=N)
    frame = pd.DataFrame({"patient": [f"patient{k:03d}" for k in range(N)], "dose": dose})
    frame["response"] = 1 + 2 * dose + rng.normal(size=N)
    frame["ward"] = ["a"] * 20 + ["b"] * 18 + ["c"] * 2
    frame["spike"] = [1e6] + [0.0] * 10 + list(rng.normal(size=N - 11))
    frame["secret"] = rng.normal(size=N)
    frame["count"], frame["days"] = rng.poisson(3, size=N), np.arange(N) * 3.0
    frame["trials"], frame["hits"] = [5000] + [8] * (N - 1), [2500] + [3] * (N - 1)
    frame.to_csv(folder / "rows.csv", index=False)
    site = Site(folder)
    site.rules()
    return site


def step(site: Site, place: int) -> str:
    """A column that parts the rows between two neighbouring doses."""
    between = float(np.sort(pd.read_csv(site.data).dose.to_numpy())[place : place + 2].mean())
    inner = f"dose - {between:.9f}".replace("- -", "+ ")
    return f"response ~ I(({inner}) / abs({inner}))"


def above(place: int) -> str:
    """A column that parts the rows between two neighbouring doses, which the server knows."""
    doses = np.sort(np.random.default_rng(7).normal(size=N))
    inner = f"(dose - {doses[place : place + 2].mean():.9f})".replace("- -", "+ ")
    return f"I({inner} / abs({inner}))"


Attack = Callable[[Site], tuple[dict[str, Any], bytes]]


def formula(text: str, **changes: Any) -> Attack:
    return lambda site: site.ask(replace(ASK, formula=text, **changes))


def differencing(site: Site) -> tuple[dict[str, Any], bytes]:
    site.answered(ASK)
    pd.read_csv(site.data).iloc[1:].to_csv(site.data, index=False)
    return site.ask(replace(ASK, form="diagonal"))


def thresholds(site: Site) -> tuple[dict[str, Any], bytes]:
    site.answered(replace(ASK, formula=step(site, 19)))
    return site.ask(replace(ASK, formula=step(site, 20)))


def few_in_each_ward(site: Site) -> tuple[dict[str, Any], bytes]:
    """Two rows in each of three wards have no value in a column that a formula may name."""
    rng = np.random.default_rng(5)
    frame = pd.concat([pd.read_csv(site.data)] * 2, ignore_index=True)
    frame = frame.assign(ward=np.arange(2 * N) % 4, lab=rng.normal(size=2 * N))
    frame["dose"], frame["response"] = rng.normal(size=(2, 2 * N))
    frame.loc[[0, 4, 1, 5, 2, 6], "lab"] = np.nan
    frame.to_csv(site.data, index=False)
    sums = replace(ASK, form="sums")
    site.answered(sums)
    return site.ask(replace(sums, formula="response ~ dose + I(0 * lab)"))


def spread_out(frame: pd.DataFrame) -> pd.DataFrame:
    """With five covariates and a response, in none of which a row stands out."""
    rng = np.random.default_rng(5)
    for name in ("dose", *"abcd"):
        frame[name] = rng.uniform(-1, 1, size=len(frame))
    return frame.assign(pay=np.exp(0.3 * frame.dose) * rng.uniform(0.5, 1.5, size=len(frame)))


def responses_of_gamma(site: Site) -> tuple[dict[str, Any], bytes]:
    """The Hessian has the responses with 21 weights that a server can work out; there are 18 rows."""
    frame = pd.read_csv(site.data).head(18)
    spread_out(frame).to_csv(site.data, index=False)
    return site.ask(replace(ASK, formula="pay ~ dose + a + b + c + d", family="gamma", form="sums"))


def pair_at_risk(site: Site) -> tuple[dict[str, Any], bytes]:
    """Only two patients are at risk together, by a time of entry of the server's choice."""
    frame = pd.read_csv(site.data).assign(time=np.arange(1.0, N + 1), event=1)
    frame.loc[7, "time"] = frame.time[6] + 1e-3
    frame.to_csv(site.data, index=False)
    return site.ask(
        replace(ASK, formula="Surv(I(time - 0.01), time, event) ~ dose + secret", family="cox", form="sums")
    )


def another_column(site: Site) -> tuple[dict[str, Any], bytes]:
    """Without its space the name of one column is that of another."""
    frame = pd.read_csv(site.data)
    frame.assign(**{"a b": frame.dose, "ab": frame.secret}).to_csv(site.data, index=False)
    site.rules(formulas=("response ~ `a b`",))
    return site.ask(replace(ASK, formula="response ~ `ab`"))


def swapped(site: Site) -> tuple[dict[str, Any], bytes]:
    """While a person reads one answer, the server asks for another of the same study."""
    site.rules(review=True)
    counts = replace(ASK, formula="count ~ dose", family="poisson", form="sums")
    population = {"mean": np.zeros(2), "covariance": np.eye(2)}
    site.ask(counts)
    site.ask(counts, "expand", population)
    ledger.approve(site.own, ledger.study_name(counts))
    return site.ask(counts, "expand", population)


def guessing(site: Site) -> tuple[dict[str, Any], bytes]:
    """The model is refused unless the guess is right; the ledger's last line is of the 21st guess."""
    for guess in range(20):
        site.ask(replace(ASK, formula=f"response ~ I((count - {guess}.5) / {POLE})"))
    return site.ask(replace(ASK, formula=f"response ~ I((count - 20.5) / {POLE})"))


def not_agreed(site: Site) -> tuple[dict[str, Any], bytes]:
    site.rules(columns=("response", "dose"))
    return site.ask(replace(ASK, formula="response ~ secret"))


def epsilon_zero(site: Site) -> tuple[dict[str, Any], bytes]:
    site.rules(epsilon=1.0)
    return site.ask(ASK)


def exact_after_private(site: Site) -> tuple[dict[str, Any], bytes]:
    site.answered(PRIVATE)
    return site.ask(ASK)


def overspent(site: Site) -> tuple[dict[str, Any], bytes]:
    site.rules(total_epsilon=1.2)
    site.answered(PRIVATE)
    return site.ask(replace(PRIVATE, formula="response ~ 1"))


def foreign_app(site: Site) -> tuple[dict[str, Any], bytes]:
    """As the gate makes it of a run of somebody else's app."""
    run = Run(
        fab_id="evil/app", fab_version="1.0.0", override_config=user_config_to_proto({"formula": "y ~ x"})
    )
    passed = GetRunResponse.FromString(Gate().own_run(GetRunResponse(run=run).SerializeToString())).run
    assert passed.fab_id == processes.APP_ID
    return site.ask({"refused": passed.override_config["refused"].string})


def oversized(site: Site) -> tuple[dict[str, Any], bytes]:
    """A message that says it has a gigabyte."""
    header = json.dumps({"sizes": {"a": 1 << 30}, "root": "a", "run_config": {}}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(site.address)
        line.sendall(struct.pack("!Q", len(header)) + header)
        line.shutdown(socket.SHUT_WR)
        _, told = mailbox.receive(line)
    return {"failed": told["failed"]}, json.dumps(told).encode()


def traced(site: Site) -> tuple[dict[str, Any], bytes]:
    """The likelihood of the rows at an atom far away, where it is that of one row."""
    atoms = np.array([[0.0, 1e6]])
    question = {"kind": "log_likelihood", "atoms": atoms}
    return site.ask(replace(ASK, mode="evaluate", likelihood="exact"), "evaluate", question)


def many_atoms(site: Site) -> tuple[dict[str, Any], bytes]:
    question = {"kind": "log_likelihood", "atoms": np.zeros((60_000, 2))}
    return site.ask(replace(ASK, mode="evaluate"), "evaluate", question)


def unmasked(site: Site) -> tuple[dict[str, Any], bytes]:
    secure = replace(ASK, mode="secure", lower="-5,-5", upper="5,5")
    return site.ask(secure, "evaluate", {"kind": "local"})


def unread(site: Site) -> tuple[dict[str, Any], bytes]:
    site.rules(review=True)
    return site.ask(ASK)


ATTACKS: dict[str, Attack] = {
    "inversion: as many coefficients as tell the rows": formula(f"response ~ {POWERS}"),
    "ids as factors": formula("response ~ 0 + C(patient)"),
    "a level of two rows": formula("response ~ C(ward)"),
    "a column in which one row stands alone": formula("response ~ dose + spike"),
    "a response in which one row stands alone": formula(f"I(secret / {POLE}) ~ 1"),
    "an offset that makes one row all of a sum": formula("count ~ dose", family="poisson", offset="days"),
    "a number of trials that does": formula("hits | trials ~ dose", family="binomial"),
    "a column whose squares run over": formula(f"response ~ dose + I(1e200 / {POLE})"),
    "a column whose squares vanish": formula(f"response ~ dose + I(1e-200 / {POLE})"),
    "two columns that part in their last digits": formula(f"response ~ dose + I(dose + 1e-17 / {POLE})"),
    "a guess of one value, until it is not refused": guessing,
    "two thresholds that part at one row": thresholds,
    "two thresholds with three rows between them": formula(
        f"response ~ {above(14)} + {above(17)}", form="sums"
    ),
    "two columns whose product is zero but in one row": formula(
        f"response ~ {above(19)} + secret + I(secret * {above(20)})", form="sums"
    ),
    "the same in columns that part in their last digits": formula(
        "response ~ secret + I(secret * (1 + 1e-9 * dose))", form="sums"
    ),
    "responses by the weights of a family": responses_of_gamma,
    "a survival model in which two rows are compared": pair_at_risk,
    "two rows in each of three wards": few_in_each_ward,
    "two runs, a row between them": differencing,
    "an atom far away, where one row is all of the likelihood": traced,
    "a likelihood traced at 60,000 atoms": many_atoms,
    "its own part of a secure sum, without a mask": unmasked,
    "a column that was not agreed": not_agreed,
    "a column by the name of another that was agreed": another_column,
    "epsilon 0, where the site insists on 1": epsilon_zero,
    "an exact answer after a private one": exact_after_private,
    "more epsilon than the site has": overspent,
    "an answer that nobody has read": unread,
    "another answer in place of the one that was read": swapped,
    "a formula that runs a shell": formula('response ~ I(__import__("os").system("id"))'),
    "a setting that names a file": lambda site: site.ask({**ASK.to_run_config(), "data": "/etc/passwd"}),
    "a foreign app": foreign_app,
    "a message of a gigabyte": oversized,
}


def outcomes(names: tuple[str, ...] = tuple(ATTACKS)) -> Iterator[Outcome]:
    """Each attack on a site of its own; the keeper is started by the same code as at a client."""
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            site = site_in(Path(place))
            site.wards = "ward" if ATTACKS[name] is few_in_each_ward else ""
            with open_keeper(site.own, site.config()) as (keeper, site.address):
                content, sent = ATTACKS[name](site)
                assert keeper.poll() is None, "the keeper has ended"
            entries = list(ledger.read_ledger(site.own)) if (site.own / ledger.LEDGER).exists() else []
            refused = [entry for entry in entries if entry["event"] in ("refused", "held")]
            reason = refused[-1]["reason"] if refused else ""
            said = json.dumps({key: value for key, value in content.items() if key != "token"})
            yield Outcome(name, said, reason, sent, site.found(sent))


HEAD = """# Attacks on a site, and what left it

`python benchmarks/federation/attacks.py`, {:%d %B %Y}, Python {}, Flower {}. Each attack on a keeper in
a process of its own. All bytes that left it were kept; they are below, with dots for what cannot be printed.
`found`: how many of the rows' 120 numbers (as eight bytes, and as text) and 40 names are in them.
"""


def main() -> None:
    print(HEAD.format(datetime.datetime.now(datetime.UTC), platform.python_version(), version("flwr")))
    print("| attack | the attacker is told | the site's ledger says | bytes | found |")
    print("|---|---|---|---|---|")
    kept = []
    for one in outcomes():
        reason = one.reason or "(no study: nothing of it was read)"
        cells = (one.name, one.said, reason, len(one.sent), one.found)
        print("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |", flush=True)
        kept.append(one)
    print("\n## The bytes\n\n```text")
    for one in kept:
        print(f"{one.name}: " + "".join(chr(byte) if 32 <= byte < 127 else "." for byte in one.sent))
    print("```")


if __name__ == "__main__":
    main()
