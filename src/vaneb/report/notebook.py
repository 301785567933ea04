"""What objects look like in a notebook: small tables and pictures as HTML that needs no script."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from vaneb.estimators import Estimator
from vaneb.npmle.fit import Certificate
from vaneb.posterior import Posterior
from vaneb.prior import Prior

WIDTH, HEIGHT = 360, 90
FEW = 5


def table_of(rows: Mapping[str, Any]) -> str:
    """Names and values, one row each."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(str(name))}</th><td>{escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table>{cells}</table>"


def html_of(shown: Any) -> str:
    """What a notebook shows of an estimator or of what a fit has found."""
    if isinstance(shown, Prior):
        return prior_html(shown)
    if isinstance(shown, Posterior):
        return posterior_html(shown)
    return certificate_html(shown) if isinstance(shown, Certificate) else estimator_html(shown)


def prior_html(prior: Prior) -> str:
    """Sizes, the heaviest atoms, and the density (or the atoms) of the first parameter."""
    m, d = prior.atoms.shape
    parameters = "parameter" if d == 1 else "parameters"
    spread = ", ".join(f"{v**0.5:.3g}" for v in prior.covariance.diagonal()[:FEW])
    head = f"<p><b>Prior</b>: {escape(str(prior))}; {d} {parameters}, sd {spread}</p>"
    if prior.populations > 1:
        names = "".join(f"<th>{escape(name)}</th>" for name in prior.names[:FEW])
        mean = "".join(f"<td>{v:.4g}</td>" for v in prior.mean[:FEW])
        return f"{head}{_picture(prior)}<table><tr><th></th>{names}</tr><tr><th>mean</th>{mean}</tr></table>"
    order = np.argsort(-prior.weights, kind="stable")[:FEW]
    names = "".join(f"<th>{escape(name)}</th>" for name in prior.names[:FEW])
    rows = "".join(
        f"<tr><td>{prior.weights[j]:.3f}</td>"
        + "".join(f"<td>{v:.4g}</td>" for v in prior.atoms[j, :FEW])
        + "</tr>"
        for j in order
    )
    more = f"<p>and {m - FEW} lighter atoms</p>" if m > FEW else ""
    return f"{head}{_picture(prior)}<table><tr><th>weight</th>{names}</tr>{rows}</table>{more}"


def _picture(prior: Prior) -> str:
    """The first parameter: a density where there is a spread, stems at the atoms."""
    at, weights = prior.atoms[:, 0], prior.weights
    sd = np.zeros(len(at)) if prior.covariances is None else np.sqrt(prior.covariances[:, 0, 0])
    reach = 3 * float(prior.covariance[0, 0]) ** 0.5 if prior.covariances is not None else 0.0
    centre = float(prior.mean[0])
    low, high = (float(at.min()), float(at.max())) if not reach else (centre - reach, centre + reach)
    margin = 0.05 * (high - low) or 1.0
    low, high = low - margin, high + margin
    place = (at - low) / (high - low) * WIDTH
    tall = (1 - weights / weights.max() * 0.9) * HEIGHT
    stems = "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT}" y2="{y:.1f}" stroke="#b8255f" stroke-width="1.5"/>'
        for x, y in zip(place, tall, strict=True)
        if prior.covariances is None
    )
    curve = ""
    if (sd > 0).any():
        grid = np.linspace(low, high, 121)
        width = np.maximum(sd, (high - low) / 200)
        density = (np.exp(-0.5 * ((grid[:, None] - at) / width) ** 2) / width) @ weights
        heights = HEIGHT * (1 - 0.95 * density / density.max())
        points = " ".join(f"{i * WIDTH / 120:.1f},{y:.1f}" for i, y in enumerate(heights))
        curve = f'<polyline points="{points}" fill="none" stroke="#2463c9" stroke-width="1.5"/>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 16}" width="{WIDTH}" height="{HEIGHT + 16}" role="img">'
        f'<line x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}" stroke="#999"/>{curve}{stems}'
        f'<text x="0" y="{HEIGHT + 13}" font-size="11" fill="#777">{low:.3g}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT + 13}" font-size="11" fill="#777" text-anchor="end">{high:.3g}</text>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT + 13}" font-size="11" fill="#777" text-anchor="middle">'
        f"{escape(prior.names[0])}</text></svg>"
    )


def posterior_html(posterior: Posterior) -> str:
    """The first clients with their 90% intervals."""
    count = min(FEW, len(posterior))
    ids = list(posterior.ids[:count]) or list(range(count))
    lower, upper = posterior.interval(0.9)
    names = "".join(f"<th>{escape(name)}</th>" for name in posterior.names[:FEW])
    rows = ""
    for k in range(count):
        cells = "".join(
            f"<td>{m:.4g} <small>({a:.3g} to {b:.3g})</small></td>"
            for m, a, b in zip(posterior.mean[k, :FEW], lower[k, :FEW], upper[k, :FEW], strict=True)
        )
        share, flag = posterior.shrinkage[k], escape(posterior.flag[k])
        rows += f"<tr><th>{escape(str(ids[k]))}</th>{cells}<td>{share:.2f}</td><td>{flag}</td></tr>"
    head = f"<tr><th>client</th>{names}<th>shrinkage</th><th>flag</th></tr>"
    return f"<p>{escape(repr(posterior))}</p><table>{head}{rows}</table>"


def certificate_html(certificate: Certificate) -> str:
    """The bound, and what it rests on."""
    reached = "reached" if certificate.reached else "not reached"
    return table_of(
        {
            "average log-likelihood still to be had, at most": f"{certificate.bound:.3g}",
            "largest gap D found": f"{certificate.gap:.3g}",
            "proved to be below": "not proved" if certificate.proved is None else f"{certificate.proved:.3g}",
            "tolerance": f"{certificate.tolerance:g}, {reached}",
            "starts of the search": f"{certificate.starts:,}",
        }
    )


def estimator_html(estimator: Estimator) -> str:
    """Options; the certificate and the prior too where it is fitted."""
    name = escape(type(estimator).__name__)
    options = table_of({key: repr(value) for key, value in estimator.get_params().items()})
    parts = [f"<p><b>{name}</b></p>{options}" if estimator.get_params() else f"<p><b>{name}</b></p>"]
    certificate, sampling = (getattr(estimator, name, None) for name in ("certificate_", "sampling_"))
    if certificate is not None:
        parts.append(certificate_html(certificate))
    if sampling is not None:
        parts.append(f"<p>{escape(str(sampling))}</p>")
    if hasattr(estimator, "prior_"):
        parts.append(prior_html(estimator.prior_))
    return "".join(parts)
