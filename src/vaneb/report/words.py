"""The page in words: what was found, how sure it is, and a paragraph of methods for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from vaneb.report.quantities import ShownQuantity

if TYPE_CHECKING:
    from vaneb.covariates import Effects
    from vaneb.grouped.result import HeldOut
    from vaneb.posterior import Posterior

CITATION = (
    "Chang, J. H., Auddy, A., and Paul, S. Personalized Federated Learning via Variance-Aware "
    "Nonparametric Empirical Bayes. Department of Statistics, The Ohio State University."
)
PLAIN = ("client", "clients", "id", "ids", "name", "names", "group", "groups", "unit", "study", "")


def nouns(column: str | None) -> tuple[str, str]:
    """One and many of what the column of clients holds: ("hospital", "hospitals").

    Examples
    --------
    >>> nouns("hospital"), nouns("country_id"), nouns("client")
    (('hospital', 'hospitals'), ('country', 'countries'), ('client', 'clients'))
    """
    word = (column or "").strip().replace("_", " ")
    for end in (" id", " name", " no", " nr", " number"):
        word = word[: -len(end)] if word.lower().endswith(end) else word
    word = word if word.isupper() else word[:1].lower() + word[1:]
    if word.lower() in PLAIN and word.lower() not in ("group", "unit", "study"):
        return "client", "clients"
    if word.endswith("s") and not word.endswith("ss"):
        return word, word
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return word, f"{word[:-1]}ies"
    return word, word + ("es" if word.endswith(("s", "x", "ch", "sh", "z")) else "s")


def number(value: float, percent: bool = False, step: float | None = None) -> str:
    """With three digits, or as many as tell steps apart; a rate in percent."""
    scaled = 100 * value if percent else value
    if step is not None and step > 0:
        size = 100 * step if percent else step
        text = f"{scaled:,.{int(np.clip(np.ceil(1.6 - np.log10(size)), 0, 6))}f}"
    else:
        text = f"{scaled:.3g}"
    return text.replace("-", "\u2212") + ("%" if percent else "")


def sentence(note: str) -> str:
    """A note of a command as a sentence of the page."""
    return f"{note[:1].upper()}{note[1:]}{'' if note.endswith(('.', '!', '?')) else '.'}"


def findings(
    shown: ShownQuantity, posterior: Posterior, held_out: HeldOut | None, noun: tuple[str, str], level: float
) -> str:
    """Who differs and by how much, how much better predictions became, and how sure that is."""
    one, many = noun
    count, name, percent = len(posterior), shown.quantity.name, shown.quantity.percent
    usual = np.array(["unexplained" not in flag for flag in posterior.flag]) | (count < 3)
    mean, step = shown.mean, float(np.ptp(shown.mean[usual])) if usual.any() else 0.0

    def say(value: float) -> str:
        return number(value, percent, step)

    the = "the " if shown.quantity.parameter is None else ""
    parts = [
        f"**{count:,} {one if count == 1 else many}**. Personalised estimates of {the}{name} run from "
        f"**{say(mean.min())}** to **{say(mean.max())}**"
    ]
    own = shown.own[np.isfinite(shown.own)]
    parts.append(f" (own estimates: {say(own.min())} to {say(own.max())}). " if len(own) else ". ")
    way = shown.flags.direction
    above, below = int((way > 0).sum()), int((way < 0).sum())
    if above + below == 0:
        parts.append(f"No {one} clearly differs from the average of the others. ")
    else:
        parts.append(
            f"**{above + below:,}** {_differs(above + below, one, many)} from the average of the others, "
            f"**{above:,} above** and **{below:,} below**; {_wrong(shown.flags.wrong, above + below)}. "
        )
        parts.append(_extremes(shown, one, say))
    parts.append(_gain(shown, held_out, one, level))
    flagged = sum(map(bool, posterior.flag))
    if flagged:
        parts.append(
            f" **{flagged:,}** {f'{one} is' if flagged == 1 else f'{many} are'} flagged in the table."
        )
    return "".join(parts)


def _differs(count: int, one: str, many: str) -> str:
    return f"{one} differs" if count == 1 else f"{many} differ"


def _wrong(share: float, count: int) -> str:
    expected = share * count
    if expected < 0.5:
        return "less than one of these is expected to be wrong" if count > 1 else "this is all but sure"
    return (
        f"about {round(expected):,} of these {'is' if round(expected) == 1 else 'are'} expected to be wrong"
    )


def _extremes(shown: ShownQuantity, one: str, say) -> str:
    """The two farthest out on either side, of those that differ."""
    said = []
    alone = np.count_nonzero(shown.flags.direction) == 1
    for sign, word in ((1, "highest"), (-1, "lowest")):
        who = np.flatnonzero(shown.flags.direction == sign)
        who = who[np.argsort(-sign * shown.mean[who], kind="stable")][:2]
        if len(who):
            names = " and ".join(
                f"{_called(shown.decisions.ids[k], one)} ({say(shown.mean[k])})" for k in who
            )
            said.append(
                f"it is {names}" if alone else f"{word} of these {'is' if len(who) == 1 else 'are'} {names}"
            )
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}. " if text else ""


def _called(name: object, one: str) -> str:
    """A client in a sentence: a bare number needs a word before it."""
    return f"{one} {name}" if str(name).replace(".", "").isdecimal() else str(name)


def _gain(shown: ShownQuantity, held_out: HeldOut | None, one: str, level: float) -> str:
    if held_out is not None:
        values = held_out.values
        better = []
        for other, words in (("local", f"each {one}'s own"), ("pooled", "one model for all")):
            change = 1 - values["personalised"] / values[other]
            size = (
                f"**{abs(change):.1%} {'better' if change > 0 else 'worse'}**"
                if abs(change) >= 5e-4
                else "as good"
            )
            better.append(f"{size} {'as' if size == 'as good' else 'than'} {words} ({number(values[other])})")
        return (
            f"On {held_out.rows:,} held-out rows, predictions are {' and '.join(better)}: "
            f"{held_out.loss} {number(values['personalised'])}."
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = (shown.upper - shown.lower) / (shown.own_upper - shown.own_lower)
    shorter = (
        1 - float(np.nanmedian(np.where(np.isfinite(ratio), ratio, np.nan)))
        if np.isfinite(ratio).any()
        else 0.0
    )
    length = (
        f"**{shorter:.0%} shorter** than" if shorter >= 0.005 else "no shorter than"
        if shorter > -0.005 else f"**{-shorter:.0%} longer** than"
    )  # fmt: skip
    return f"The median {level:.0%} interval is {length} that from the {one}'s own data."


def of_covariates(effects: Effects | None, names: Sequence[str], many: str) -> list[str]:
    """What covariates of the clients do to the centre of the population; nothing where there are none."""
    if effects is None:
        return []
    notes = [f"The population is drawn for {many} with average covariates ({', '.join(effects.covariates)})."]
    for i, covariate in enumerate(effects.covariates):
        changes = (
            f"{name} changes by {number(mean)} (sd {number(sd)})"
            for name, mean, sd in zip(names, effects.mean[:, i], effects.sd[:, i], strict=True)
        )
        notes.append(f"With one unit more of {covariate}, the expected {', '.join(changes)}.")
    return notes


def methods(posterior: Posterior, noun: tuple[str, str], level: float, seen: str) -> str:
    """To paste into a paper."""
    one, many = noun
    prior = posterior.population
    over = f"The distribution of the parameters over {many}"
    if prior.covariances is None:
        population = (
            f"{over} was estimated by nonparametric maximum likelihood ({len(prior.weights)} support "
            f"points). The {level:.0%} intervals are of each {one}'s posterior given that distribution"
        )
    elif prior.populations > 1:
        kind = "Gaussian distributions" if prior.kind == "gaussian" else "mixtures of Gaussian groups"
        population = (
            f"{over} was given a prior over {kind}, and {prior.populations:,} distributions were drawn from "
            f"its posterior. Each {one}'s posterior was averaged over these draws, so the {level:.0%} "
            "intervals include the uncertainty about the distribution"
        )
    else:
        population = f"{over} was given. The {level:.0%} intervals are of each {one}'s posterior"
    return (
        f"Estimates of {len(posterior):,} {many} were personalised with vaneb {version('vaneb')} "
        f"(Chang, Auddy and Paul) from {seen}. {population}. Those {many} were said to differ from the "
        "others whose posterior probability of lying above (or below) their average was so high that at most "
        "5% of all such statements are expected to be wrong."
    )
