"""Is an answer what it claims to be?  What the server accepts as a client's report, and from whom.

A node that is registered under a name speaks for that client only.  Without authentication names are mere
claims: two nodes that claim one name are both refused, unless one of them had it in an earlier run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from vaneb.errors import InvalidReport
from vaneb.flower.site_sums import SiteSums
from vaneb.flower.wire import Tree
from vaneb.reports import ClientReport


@dataclass(frozen=True, eq=False)
class Claim:
    """One node's report, valid by itself."""

    node: int
    report: ClientReport | SiteSums
    names: tuple[str, ...]
    design: str

    @property
    def kind(self) -> tuple[tuple[str, ...], str, str]:
        """What must be the same for all clients of a fit."""
        if isinstance(self.report, SiteSums):
            return self.names, self.design, "sums"
        family = type(self.report.covariance).__name__
        constant = "Constant" if family in ("ConstantDiagonal", "ConstantFull") else family
        return self.names, self.design, constant


def read_names(value: object) -> tuple[str, ...]:
    """Names of parameters, from outside; empty if they are none."""
    if not isinstance(value, list):
        return ()
    good = all(isinstance(name, str) and len(name) < 500 and name.isprintable() for name in value)
    return tuple(value) if good else ()


def read_claim(node: int, registered: str, content: Tree, *, sums: bool = False) -> Claim:
    """The report in an answer, or the sums; ``InvalidReport`` says what is wrong with it."""
    names = read_names(content.get("names"))
    if not names:
        raise InvalidReport("names: expected a list of text.")
    design = content.get("design")
    if not isinstance(design, str) or len(design) > 100:
        raise InvalidReport("design: expected a short text.")
    try:
        report = (SiteSums if sums else ClientReport).from_wire(content.get("report", {}))
    except InvalidReport:
        raise
    except Exception:  # from outside: any of a dozen kinds of error
        raise InvalidReport("report: not a client report that this version writes.") from None
    d = report.dimension if isinstance(report, SiteSums) else len(report.estimate)
    if len(names) != d or len(set(names)) != len(names):
        raise InvalidReport(f"names: {len(names)} for {d} parameters, or not distinct.")
    if registered and report.id != registered:
        raise InvalidReport(
            f"id: answers for {report.id!r:.40}, but this node is registered as {registered!r}."
        )
    return Claim(node, report, names, design)


def consistent(
    claims: Mapping[int, Claim], parameters: tuple[str, ...], earlier: Mapping[str, int]
) -> tuple[dict[int, Claim], dict[int, str]]:
    """Claims that can be fitted together, and why the others cannot.

    Parameters
    ----------
    parameters : names that reports must have; empty for those that most have.
    earlier : node that held a name in an earlier run.
    """
    refused: dict[int, str] = {}
    count = Counter(claim.report.id for claim in claims.values())
    for node, claim in claims.items():
        name = claim.report.id
        owner = earlier.get(name)
        if owner is not None and owner != node:
            refused[node] = f"id: {name!r:.40} belongs to another node."
        elif count[name] > 1 and owner is None:
            refused[node] = f"id: {name!r:.40} is claimed by {count[name]} nodes, and none is authenticated."
    left = {node: claim for node, claim in claims.items() if node not in refused}
    kinds = Counter(c.kind for c in left.values() if not parameters or c.names == parameters)
    common = kinds.most_common(2)
    if len(common) == 2 and common[0][1] == common[1][1]:
        raise InvalidReport(
            "reports: the clients disagree on what their parameters are (as many say "
            f"{', '.join(common[0][0][0][:6])} as {', '.join(common[1][0][0][:6])}). Give their names."
        )
    accepted: dict[int, Claim] = {}
    for node, claim in left.items():
        if common and claim.kind == common[0][0]:
            accepted[node] = claim
        else:
            wanted = parameters or (common[0][0][0] if common else ())
            refused[node] = (
                "report: its factor levels, classes or kind of covariance are not those of the others."
                if claim.names == wanted
                else f"report: has {len(claim.names)} parameters ({', '.join(claim.names[:6])}), the others "
                f"have {len(wanted)} ({', '.join(wanted[:6])})."
            )
    return accepted, refused
