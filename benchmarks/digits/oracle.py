"""What there is to win by pooling heads well: an oracle that knows the groups, and populations that do not.

    python benchmarks/digits/oracle.py [--seeds 5] [--data digits|mnist] [--data-dir DATA]

The body is that of FedAvg, frozen.  With h its features, o_k the client's log-proportions:

    y ~ softmax(Phi_k h + o_k),   vec(Phi_k) ~ sum_g pi_g N(mu_g, tau^2 I)

with the exact likelihood; mu, pi, tau by EM, where each client's posterior is Laplace's (mode and inverse of
the penalised information).  "one Gaussian" has one group, "mixture" finds three, "oracle" is told them.
Rows go to oracle_DATA.csv, line by line; what is there is not run again.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from run import DATA
from torch import Tensor

from vaneb.fl.config import default_config
from vaneb.fl.data import load_images
from vaneb.fl.experiment import federate_setting, model_of, run_experiment
from vaneb.fl.head_training import train_heads
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.models import build_network
from vaneb.fl.network import features, head_matrix, load_params, read_params
from vaneb.fl.trees import load_tree

HERE = Path(__file__).resolve().parent
COLUMNS = ("setting", "seed", "method", "balanced", "matched", "agreement")
GROUPS, STARTS, SWEEPS, STEPS = 3, 5, 12, 4


def mode(
    h: Tensor, y: Tensor, o: Tensor, mu: Tensor, tau2: float, start: Tensor
) -> tuple[Tensor, float, float]:
    """Penalised maximum by Newton steps with halving; also the trace of the posterior covariance and
    Laplace's log marginal likelihood."""
    (c, f), n = mu.shape, len(y)
    truth = torch.nn.functional.one_hot(y, c).to(h)

    def loss(phi: Tensor) -> Tensor:
        fit = torch.log_softmax(h @ phi.T + o, 1)[range(n), y].sum()
        return -fit + (phi - mu).square().sum() / (2 * tau2)

    phi, value = start.clone(), loss(start)
    for _ in range(STEPS):
        p = torch.softmax(h @ phi.T + o, 1)
        gradient = (p - truth).T @ h + (phi - mu) / tau2
        w = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        information = torch.einsum("nab,nf,ng->afbg", w, h, h).reshape(c * f, c * f)
        information.diagonal().add_(1 / tau2)
        factor = torch.linalg.cholesky(information)
        step = torch.cholesky_solve(gradient.reshape(-1, 1), factor).reshape(c, f)
        size = 1.0
        while (tried := loss(phi - size * step)) > value and size > 1e-3:
            size /= 2
        if tried <= value:
            phi, value = phi - size * step, tried
    logdet = 2 * factor.diagonal().log().sum() + c * f * np.log(tau2)
    return phi, float(torch.cholesky_inverse(factor).diagonal().sum()), float(-value - logdet / 2)


def population(rows: list, shared: Tensor, known: np.ndarray | None, groups: int, seed: int) -> tuple:
    """EM; returns posterior mean heads (K, C, F), shares (K, groups), the log marginal likelihood."""
    rng, k, d = np.random.default_rng(seed), len(rows), shared.numel()
    tau2, mu = 0.05, [shared.clone() for _ in range(groups)]
    shares = np.eye(groups)[known] if known is not None else np.ones((k, groups)) / groups
    if known is None and groups > 1:  # begin at the heads of clients drawn at random
        for g, j in enumerate(rng.choice(k, groups, replace=False)):
            mu[g] = mode(*rows[j], shared, 1.0, shared)[0]
    heads = torch.stack([torch.stack(mu) for _ in range(k)])
    for _ in range(SWEEPS):
        marginal, trace = np.zeros((k, groups)), np.zeros((k, groups))
        for j in range(k):
            for g in range(groups):
                if known is not None and known[j] != g:
                    continue
                heads[j, g], trace[j, g], marginal[j, g] = mode(*rows[j], mu[g], tau2, heads[j, g])
        weights = shares.mean(0)
        if known is None:
            score = marginal + np.log(weights + 1e-12)
            top = score.max(1, keepdims=True)
            total = float((top[:, 0] + np.log(np.exp(score - top).sum(1))).sum())
            shares = np.exp(score - top)
            shares /= shares.sum(1, keepdims=True)
        else:
            total = float((marginal * shares).sum())
        r = torch.from_numpy(shares)
        for g in range(groups):
            if shares[:, g].sum() > 1e-6:
                mu[g] = torch.einsum("k,kcf->cf", r[:, g], heads[:, g]) / r[:, g].sum()
        spread = sum(
            shares[j, g] * (float((heads[j, g] - mu[g]).square().sum()) + trace[j, g])
            for j in range(k)
            for g in range(groups)
        )
        tau2 = max(spread / (k * d), 1e-6)
    return torch.einsum("kg,kgcf->kcf", torch.from_numpy(shares), heads), shares, total


def best_mixture(rows: list, shared: Tensor, seed: int) -> tuple:
    return max(
        (population(rows, shared, None, GROUPS, 100 * seed + i) for i in range(STARTS)),
        key=lambda fit: fit[2],
    )


def averaged(rows: list, shared: Tensor, group: np.ndarray, rounds: int, tuning: dict, seed: int) -> Tensor:
    """Logit-adjusted averaging of heads within groups, each client with its own share of each row."""
    mean = torch.stack([shared.float()] * len(rows))
    seen, labels = [h.float() for h, _, _ in rows], [y for _, y, _ in rows]
    offsets = torch.stack([o for _, _, o in rows]).float()
    sizes = torch.tensor([len(y) for y in labels], dtype=torch.float32)
    for number in range(rounds):
        rngs = [np.random.default_rng([seed, number, j]) for j in range(len(rows))]
        heads = train_heads(mean, seen, labels, rngs, offsets=offsets, **tuning)
        for g in np.unique(group):
            inside = torch.from_numpy(group == g)
            w = sizes[inside] / sizes[inside].sum()
            mean[inside] = torch.einsum("k,kcf->cf", w, heads[inside])
    counts = torch.stack([torch.bincount(y, minlength=shared.shape[0]) for y in labels])
    own = (counts / (counts + 10.0))[..., None]
    return ((1 - own) * mean + own * heads).double()


def agreement(shares: np.ndarray, group: np.ndarray) -> float:
    """Adjusted Rand index of the most probable groups and the true ones."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(group, shares.argmax(1)))


def one(setting: str, seed: int, data: str, data_dir: Path | None, done: set, write: Callable) -> None:
    config = default_config(data)
    config = replace(config, seed=seed, methods=("fedavg",), data=replace(config.data, **DATA[setting]))
    images = load_images(data, data_dir)
    federated = federate_setting(config, images)
    with tempfile.TemporaryDirectory() as work:
        run_experiment(config, Path(work), images=images)
        (file,) = Path(work).glob("stages/fedavg-*/state-*.npz")
        params = load_tree(file)["params"]
    network = build_network(**model_of(config))
    load_params(network, params)
    shared = head_matrix(network, read_params(network, network.head_names)).double()
    rows, tests = [], []
    for k in range(config.data.clients):
        mine = federated.client(k)
        offset = log_proportions(mine.labels, mine.n_classes).double()
        rows.append((features(network, mine.images).double(), mine.labels, offset))
        tests.append([federated.test(k, protocol) for protocol in ("balanced", "matched")])
    group = np.asarray(federated.cluster) // (4 if config.data.shift > 0 else 1)
    tuning = {
        "epochs": config.fine_tuning.epochs,
        "batch_size": config.fine_tuning.batch_size,
        "learning_rate": config.fine_tuning.learning_rate,
    }

    def tell(method: str, heads: Tensor, shares: np.ndarray | None = None) -> None:
        right = np.zeros((len(rows), 2))
        for k, pair in enumerate(tests):
            for i, test in enumerate(pair):
                scores = features(network, test.images).double() @ heads[k].T + i * rows[k][2]
                right[k, i] = (scores.argmax(1) == test.labels).double().mean()
        found = "" if shares is None else f"{agreement(shares, group):.2f}"
        write((setting, seed, method, *(f"{100 * v:.3f}" for v in right.mean(0)), found))

    together = np.zeros(len(rows), dtype=int)
    everyone = torch.stack([shared] * len(rows))
    tell("FedAvg with log-proportions", everyone)
    tell("twin: mean of heads, own share", averaged(rows, shared, together, 1, tuning, seed))
    tell("mean of heads, 5 rounds, own share", averaged(rows, shared, together, 5, tuning, seed))
    tell("oracle groups: mean of heads, 5 rounds", averaged(rows, shared, group, 5, tuning, seed))
    tell("one Gaussian", population(rows, shared, together, 1, seed)[0])
    if group.max() > 0:
        tell("oracle groups: Gaussians", population(rows, shared, group, GROUPS, seed)[0])
        heads, shares, _ = best_mixture(rows, shared, seed)
        tell("mixture of Gaussians", heads, shares)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--seeds", type=int, default=5)
    flags.add_argument("--data", default="digits")
    flags.add_argument("--data-dir", type=Path)
    flags.add_argument("--setting", nargs="+", default=list(DATA))
    asked = flags.parse_args()
    torch.set_num_threads(1)
    path = HERE / f"oracle_{asked.data}.csv"
    done = set()
    if path.exists():
        with open(path) as file:
            done = {(row["setting"], int(row["seed"])) for row in csv.DictReader(file)}
    else:
        path.write_text(",".join(COLUMNS) + "\n")

    for seed in range(asked.seeds):
        for setting in asked.setting:
            if (setting, seed) in done:
                continue
            lines: list[tuple] = []
            one(setting, seed, asked.data, asked.data_dir, done, lines.append)
            with open(path, "a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(lines)
            for line in lines:
                print(*line, flush=True)


if __name__ == "__main__":
    main()
