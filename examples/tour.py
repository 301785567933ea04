# %% [markdown]
# # A tour of vaneb
#
# A notebook kept as a script: open it with jupytext or as cells in an editor, or run it.
# It makes the pictures of the guide's page "How it works".

# %%
import matplotlib
import numpy as np
from scipy.special import ndtr

import vaneb
from vaneb.theory import gap

matplotlib.use("Agg")
import matplotlib.pyplot as plt

plt.rcParams.update({"figure.figsize": (7.2, 2.9), "axes.spines.top": False, "axes.spines.right": False})
OWN, AFTER, ATOM = "#a8752a", "#2463c9", "#b8255f"

# %% [markdown]
# Counts per hour at 200 sites, each watched for 4 to 12 hours.  The truth is three kinds of sites; the
# variance of an hour's count is its mean, so the noise depends on what is to be estimated.

# %%
rng = np.random.default_rng(4)
K = 200
theta = rng.choice([2.0, 5.0, 10.0], K, p=[0.5, 0.3, 0.2])
hours = rng.integers(4, 13, K)
rate = rng.poisson(theta * hours) / hours
poisson = vaneb.covariance.by_name("poisson", dimension=1, n_clients=K)
reports = vaneb.Reports(rate, n=hours, covariance=poisson, names=["rate"])
grid = np.linspace(0.05, 15, 600)

# %% [markdown]
# What six sites say of their own rate: the likelihood of theta, given the estimate.

# %%
likelihood = reports.likelihood()
density = np.exp(likelihood.log_likelihood(grid[:, None]))
figure, axis = plt.subplots()
for k in np.argsort(rate)[[10, 60, 110, 150, 175, 195]]:
    axis.plot(grid, density[k] / density[k].max(), color=OWN, lw=1.2)
    axis.plot(rate[k], 0, "o", color=OWN, clip_on=False)
axis.set(xlabel="rate", ylabel="likelihood", title="Six sites: estimate (dot) and what it says of the rate")
figure.savefig("method-likelihoods.png", dpi=110, bbox_inches="tight")

# %% [markdown]
# The population: a posterior over mixtures of Gaussian groups.  Each population that was drawn is a line.

# %%
model = vaneb.VANEB().fit(reports)
prior = model.prior_
print(prior)


def share_below(rows):
    """Share of a population that lies below each point of the grid."""
    weights, sd = prior.weights[rows], np.sqrt(prior.covariances[rows, 0, 0])
    return ndtr((grid[:, None] - prior.atoms[rows, 0]) / sd) @ weights / weights.sum()


figure, axis = plt.subplots()
for draw in range(0, prior.populations, 10):
    axis.plot(grid, share_below(prior.draw == draw), color=ATOM, lw=0.6, alpha=0.35)
axis.plot(grid, share_below(np.arange(len(prior.weights))), color=ATOM, lw=2, label="their average")
axis.step(np.sort(rate), np.arange(1, K + 1) / K, color=OWN, where="post", label="own estimates")
axis.set(
    xlim=(0, 15), xlabel="rate", ylabel="share below", title="Some of the populations drawn; truth: 2, 5, 10"
)
axis.legend(frameon=False, loc="lower right")
figure.savefig("method-populations.png", dpi=110, bbox_inches="tight")

# %% [markdown]
# Back to the sites: an average over all these populations.

# %%
post = model.personalize(reports)
figure, axis = plt.subplots()
for k in range(K):
    axis.plot([rate[k], post.mean[k, 0]], [1, 0], color="0.6", lw=0.5, alpha=0.6)
axis.plot(rate, np.ones(K), "o", color=OWN, ms=4, alpha=0.6)
axis.plot(post.mean[:, 0], np.zeros(K), "o", color=AFTER, ms=4, alpha=0.6)
axis.set(
    xlabel="rate",
    title="From own estimates (top) to personalised ones",
    yticks=[0, 1],
    yticklabels=["after", "own"],
)
axis.set_ylim(-0.15, 1.15)
figure.savefig("method-shrinkage.png", dpi=110, bbox_inches="tight")

error_own = np.sqrt(np.mean((rate - theta) ** 2))
error_after = np.sqrt(np.mean((post.mean[:, 0] - theta) ** 2))
print(f"root mean squared error: {error_own:.2f} own, {error_after:.2f} personalised")
assert error_after < error_own

# %% [markdown]
# The other kind of population: atoms, the nonparametric maximum likelihood estimate.

# %%
discrete = vaneb.VANEB(population="discrete").fit(reports).prior_
figure, axis = plt.subplots()
axis.hist(rate, 45, color=OWN, alpha=0.45, label="own estimates")
twin = axis.twinx()
twin.vlines(discrete.atoms[:, 0], 0, discrete.weights, color=ATOM, lw=2, label="atoms")
twin.plot(discrete.atoms[:, 0], discrete.weights, "o", color=ATOM)
twin.set(ylim=(0, None), ylabel="weight")
axis.set(
    xlabel="rate",
    ylabel="sites",
    title=f"{K} sites, {len(discrete.weights)} atoms; the truth is at 2, 5 and 10",
)
figure.legend(loc="upper right", bbox_to_anchor=(0.88, 0.86), frameon=False)
figure.savefig("method-atoms.png", dpi=110, bbox_inches="tight")

# %% [markdown]
# The certificate: D for a bad prior (one atom at the mean) and for the fitted one.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 2.9))
one = np.array([[rate.mean()]])
for axis, atoms, weights, title in (
    (axes[0], one, np.ones(1), "one atom at the mean"),
    (axes[1], discrete.atoms, discrete.weights, "the fit"),
):
    value = gap(likelihood, atoms, weights, grid[:, None])
    axis.plot(grid, value, color=AFTER)
    axis.axhline(0, color="0.5", lw=0.8, ls="--")
    axis.plot(atoms[:, 0], np.zeros(len(atoms)), "o", color=ATOM, ms=4)
    axis.set(xlabel="rate", ylabel="D", title=f"{title}: largest D = {value.max():.2g}")
axes[0].set_yscale("symlog")
axes[0].set_yticks([0, 1e4, 1e8, 1e12, 1e16])
figure.tight_layout()
figure.savefig("method-gap.png", dpi=110, bbox_inches="tight")
assert gap(likelihood, discrete.atoms, discrete.weights, grid[:, None]).max() < 1e-3

# %% [markdown]
# And the whole of it as a page to keep.

# %%
vaneb.report.write_page("tour.html", vaneb.report.fit_content(model, post, reports, title="200 sites"))
