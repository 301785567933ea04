"""README.md beside this file, from the rows of step.csv."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import torch

from vaneb.fl.methods import METHODS

HERE = Path(__file__).resolve().parent
GLM = ("vaneb_glm",)
TWIN = "twin_la_smooth"
#: The best control of oracle.py.
CONTROL = "mean of heads, 5 rounds, own share"
OTHERS = (TWIN, "fedavg_prior", "mean_heads", "fedavg_ft_adjusted", "vaneb_la_smooth", "fedavg_ft")
PROTOCOLS = ("balanced", "matched")
Row = dict[str, str]
#: A cell of the tables: data set, setting, method, protocol.
Values = dict[tuple[str, str, str, str], dict[int, Row]]


def paired(one: dict[int, Row], other: dict[int, Row]) -> tuple[float, float]:
    """Mean difference of accuracies over seeds, and its standard error."""
    seeds = sorted(set(one) & set(other))
    gains = np.array([float(one[seed]["accuracy"]) - float(other[seed]["accuracy"]) for seed in seeds])
    return float(gains.mean()), float(gains.std(ddof=1) / len(gains) ** 0.5) if len(gains) > 1 else np.nan


def verdict(gain: float, error: float, seeds: int) -> str:
    if seeds < 3:
        return f"{seeds} seed{'s' * (seeds > 1)}"
    if abs(gain) <= 2 * error:
        return "tie"
    return "**above**" if gain > 0 else "**below**"


def mean(rows: dict[int, Row], column: str) -> float:
    return float(np.mean([float(row[column]) for row in rows.values()]))


def setting_tables(values: Values, data: str, setting: str) -> list[str]:
    found = {
        (method, protocol): values[data, setting, method, protocol]
        for method in METHODS
        for protocol in PROTOCOLS
        if (data, setting, method, protocol) in values
    }
    lines = [
        f"## {data}, {setting}",
        "",
        "| method | seeds | balanced | worst tenth | hurt | ECE | matched | worst tenth | hurt | ECE |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for method in sorted({m for m, _ in found}, key=lambda m: -mean(found[m, "balanced"], "accuracy")):
        cells = [
            f"{mean(found[method, protocol], column):.2f}"
            for protocol in PROTOCOLS
            for column in ("accuracy", "worst_tenth", "hurt", "ece")
        ]
        lines.append(f"| {METHODS[method][0]} | {len(found[method, 'balanced'])} | {' | '.join(cells)} |")
    for step in GLM:
        if (step, PROTOCOLS[0]) not in found:
            continue
        lines += [
            "",
            f"{METHODS[step][0]} less the other, paired by seed:",
            "",
            "| other | balanced | | matched | |",
            "|---|---:|---|---:|---|",
        ]
        for other in OTHERS:
            if not found[step, PROTOCOLS[0]].keys() & found.get((other, PROTOCOLS[0]), {}).keys():
                continue  # no seed of both
            cells = []
            for protocol in PROTOCOLS:
                gain, error = paired(found[step, protocol], found[other, protocol])
                cells += [
                    f"{gain:+.2f}{'' if np.isnan(error) else f' ± {error:.2f}'}",
                    verdict(gain, error, len(found[step, protocol].keys() & found[other, protocol].keys())),
                ]
            lines.append(f"| {METHODS[other][0]} | {' | '.join(cells)} |")
    if {("vaneb_la_smooth", PROTOCOLS[0]), (TWIN, PROTOCOLS[0])} <= found.keys():
        words = []
        for protocol in PROTOCOLS:
            gain, error = paired(found["vaneb_la_smooth", protocol], found[TWIN, protocol])
            words.append(f"{gain:+.2f}{'' if np.isnan(error) else f' ± {error:.2f}'} {protocol}")
        lines += ["", f"VANEB-LA (smooth) less its twin: {', '.join(words)}."]
    return [*lines, ""]


def oracle_table(rows: list[Row]) -> list[str]:
    """What oracle.py found, and its difference from five rounds of means, paired by seed."""
    lines = [
        "| setting | method | balanced | difference | matched | difference |",
        "|---|---|---:|---:|---:|---:|",
    ]
    found: dict[tuple[str, str], dict[str, dict[int, Row]]] = {}
    for row in rows:
        for protocol in PROTOCOLS:
            mine = found.setdefault((row["setting"], row["method"]), {}).setdefault(protocol, {})
            mine[int(row["seed"])] = {"accuracy": row[protocol]}
    for (setting, method), values in found.items():
        cells = []
        for protocol in PROTOCOLS:
            gain, error = paired(values[protocol], found[setting, CONTROL][protocol])
            cells += [f"{mean(values[protocol], 'accuracy'):.2f}", f"{gain:+.2f} ± {error:.2f}"]
        lines.append(f"| {setting} | {method} | {' | '.join(cells)} |")
    return lines


def render(rows: list[Row], oracle: list[Row]) -> None:
    values: Values = {}
    for row in rows:
        key = (row["data"], row["setting"], row["method"], row["protocol"])
        values.setdefault(key, {})[int(row["seed"])] = row
    page = (HERE / "README.md").read_text()
    lines = [
        f"Code {', '.join(sorted({row['code'] for row in rows}))} (one fingerprint for all parts that decide "
        f"a result); torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}.",
        "",
    ]
    for data, setting in dict.fromkeys((row["data"], row["setting"]) for row in rows):
        lines += setting_tables(values, data, setting)
    page = _filled(page, "step", lines)
    (HERE / "README.md").write_text(_filled(page, "oracle", oracle_table(oracle)))


def _filled(page: str, name: str, lines: list[str]) -> str:
    """``page`` with ``lines`` between the marks of that name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    body = "\n".join(lines).strip()
    return f"{page.split(begin)[0]}{begin}\n{body}\n{end}{page.split(end)[1]}"
