"""A client's label proportions, kept apart from its network.

A classifier that is to be used under other label proportions q than those p it was trained under
changes its logits by log q - log p.  A client knows its own p, so a head fitted on logits + log p_k
learns what the images say and leaves the proportions out: used as it is it predicts for balanced labels,
and with log p_k added back for labels like the client's own (logit adjustment: Menon et al. 2021).
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Images that a client is taken to have seen in addition to its own, shared evenly by all classes.  More
#: would let fine-tuning learn that classes without images are rarer still, which must stay out of the head.
PSEUDO_IMAGES = 1.0


def log_proportions(labels: Tensor, n_classes: int) -> Tensor:
    """log p_kc, p_kc = (n_kc + e / C) / (n_k + e), shape (classes,): finite for classes never seen."""
    counts = torch.bincount(labels, minlength=n_classes).to(torch.float32) + PSEUDO_IMAGES / n_classes
    return torch.log(counts / counts.sum())
