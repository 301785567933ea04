"""VANEB-LA: VANEB-FT with the label proportions kept apart from the head.

Beyond the paper.  Fine-tuning on a client's skewed labels teaches its head two things at once: what the
client's images look like and which labels it has many of.  The second is known to the client exactly, so
it need not be estimated, averaged over clients or undone: the loss is that of the logits *plus* the
client's smoothed log-proportions, and so are the gradients in Sigma_k.  What remains in the head is what
heads have in common, which is what shrinkage is good for.  One personalised model then has two operating
points: as it is for balanced labels, with the client's log-proportions added for labels like its own.

With ``prior_count`` the prior is smooth ("VANEB-LA (smooth)" in the tables): for classes that a client has
many images of, its head stays close to what it fitted itself; for those it has never seen, it is what the
other clients know.
"""

from __future__ import annotations

from vaneb.fl.algorithm import Algorithm
from vaneb.fl.algorithms.vaneb_ft import vaneb_ft
from vaneb.fl.network import Network
from vaneb.fl.personalise_heads import Rule


def vaneb_la(
    network: Network,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    rule: Rule,
    damping: float,
    iterations: int,
    atoms: int = 10,
    prior_count: float | None = None,
) -> Algorithm:
    """VANEB-FT with logit-adjusted fine-tuning; the parameters are those of ``vaneb_ft``."""
    return vaneb_ft(
        network,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        rule=rule,
        damping=damping,
        iterations=iterations,
        atoms=atoms,
        adjusted=True,
        prior_count=prior_count,
    )
