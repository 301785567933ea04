# %% [markdown]
# # A tour of vaneb
#
# A notebook kept as a script: open it with jupytext or as cells in an editor, or run it.
# It makes the pictures of the README and of the guide's page "How it works".

# %%
import matplotlib
import numpy as np
from PIL import Image
from scipy.stats import norm

import vaneb
from vaneb.theory import gap

matplotlib.use("Agg")
import matplotlib.pyplot as plt

plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10})
OWN, AFTER, POPULATION, TRUTH = "#a8752a", "#2463c9", "#b8255f", "0.35"


def save(figure, name):
    figure.tight_layout()
    figure.savefig(name, dpi=110)
    plt.close(figure)
    # 64 colours are enough, and take a third of the bytes.
    Image.open(name).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(name, optimize=True)


def root_mean_squared(difference):
    return np.sqrt(np.mean(np.square(difference)))


# %% [markdown]
# ## Pictures of a fit
#
# Left: what the population may be.  Each thin line is one population that was drawn, the thick one their
# average.  Right: each client's own estimate beside its personalised one.


# %%
def density(prior, rows, grid):
    """Density (G,) of the part of the population that these rows of the prior are."""
    weights = prior.weights[rows] / prior.weights[rows].sum()
    return norm.pdf(grid[:, None], prior.atoms[rows, 0], np.sqrt(prior.covariances[rows, 0, 0])) @ weights


def population_picture(axis, prior, own, grid, title):
    for draw in range(0, prior.populations, 8):
        axis.plot(grid, density(prior, prior.draw == draw, grid), color=POPULATION, lw=0.5, alpha=0.25)
    # The average in narrow bins: some of the drawn groups are thinner than any line.
    ends = np.linspace(grid[0], grid[-1], 81)
    share = norm.cdf(ends[:, None], prior.atoms[:, 0], np.sqrt(prior.covariances[:, 0, 0])) @ prior.weights
    average = np.diff(share) / np.diff(ends)
    axis.plot(
        (ends[1:] + ends[:-1]) / 2, average, color=POPULATION, lw=2.2, label="average of the populations"
    )
    axis.plot(own, np.full(len(own), -0.04 * average.max()), "|", color=OWN, ms=7, label="own estimates")
    axis.set(title=title, yticks=[], ylim=(-0.08 * average.max(), 2.2 * average.max()))
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def before_and_after(axis, own, errors, post, labels=None, level=0.9):
    """Clients in the order of their own estimates, with intervals of both."""
    order = np.argsort(own)
    at = np.arange(len(own))
    lower, upper = (end[order, 0] for end in post.interval(level))
    z = norm.ppf((1 + level) / 2)
    axis.hlines(at + 0.15, own[order] - z * errors[order], own[order] + z * errors[order], color=OWN, lw=1)
    axis.plot(own[order], at + 0.15, "o", color=OWN, ms=4, label="own")
    axis.hlines(at - 0.15, lower, upper, color=AFTER, lw=1.6)
    axis.plot(post.mean[order, 0], at - 0.15, "o", color=AFTER, ms=4, label="personalised")
    axis.set(yticks=at if labels is not None else [], title="before and after, with 90% intervals")
    if labels is not None:
        axis.set_yticklabels([labels[k] for k in order], fontsize=8)
    axis.legend(frameon=False, fontsize=8, loc="lower right")


# %% [markdown]
# ## Eight schools
#
# Eight clients hardly settle what their population is, and the drawn populations differ widely.

# %%
schools = list("ABCDEFGH")
effect = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
error = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
reports = vaneb.Reports(effect, standard_errors=error, ids=schools, names=["effect"])
model = vaneb.VANEB().fit(reports)
post = model.personalize(reports)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3))
population_picture(
    left, model.prior_, effect, np.linspace(-30, 50, 400), "eight schools: what the population may be"
)
left.set_xlabel("effect of coaching, in points")
before_and_after(right, effect, error, post, schools)
right.set_xlabel("effect of coaching, in points")
save(figure, "method-schools.png")

# %% [markdown]
# ## Two groups
#
# 200 clinics, simulated: a treatment works in a quarter of them.  This is the example of the README.

# %%
rng = np.random.default_rng(0)
works = rng.random(200) < 0.25
truth = np.where(works, 2.5, 0.0) + 0.15 * rng.standard_normal(200)
se = rng.uniform(0.3, 1.0, 200)
estimate = truth + se * rng.standard_normal(200)
reports = vaneb.Reports(estimate, standard_errors=se)
model = vaneb.VANEB().fit(reports)
post = model.personalize(reports)
one_mean = vaneb.VANEB(population="gaussian").fit(reports).personalize(reports)

figure, axes = plt.subplots(1, 3, figsize=(9.4, 3.3), sharex=True, sharey=True)
for axis, name, values, colour in (
    (axes[0], "own estimates", estimate, OWN),
    (axes[1], "shrunk to one mean", one_mean.mean[:, 0], TRUTH),
    (axes[2], "personalised by vaneb", post.mean[:, 0], AFTER),
):
    axis.plot([-2, 5], [-2, 5], color="0.8", lw=1)
    axis.plot(truth, values, "o", color=colour, ms=4, alpha=0.6)
    axis.set(
        title=f"{name}: error {root_mean_squared(values - truth):.2f}", xlabel="true effect", xlim=(-1, 3.5)
    )
axes[0].set_ylabel("estimate")
save(figure, "first-example.png")
assert root_mean_squared(post.mean[:, 0] - truth) < root_mean_squared(one_mean.mean[:, 0] - truth)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3))
population_picture(left, model.prior_, estimate, np.linspace(-2, 5, 400), "200 clinics: two groups")
left.set_xlabel("effect")
right.plot([-2, 5], [-2, 5], color="0.8", lw=1)
points = right.scatter(estimate, post.mean[:, 0], c=se, s=16, cmap="viridis")
figure.colorbar(points, ax=right, label="standard error")
right.set(xlabel="own estimate", ylabel="personalised", title="noisy clients move to the group they fit")
save(figure, "method-groups.png")

# %% [markdown]
# ## One client far away
#
# 24 clinics that are much alike, and one at 9.  It is kept where it is, and the others stay where they were.

# %%
rng = np.random.default_rng(3)
errors = rng.uniform(0.4, 0.8, 24)
others = rng.normal(0, 0.5, 24) + errors * rng.standard_normal(24)
estimates, errors = np.append(others, 9.0), np.append(errors, 0.6)
reports = vaneb.Reports(estimates, standard_errors=errors)
model = vaneb.VANEB().fit(reports)
post = model.personalize(reports)
without = vaneb.Reports(others, standard_errors=errors[:24])
post_without = vaneb.VANEB().fit(without).personalize(without)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
population_picture(left, model.prior_, estimates, np.linspace(-3, 11, 500), "24 alike, and one at 9")
left.set_xlabel("effect")
before_and_after(right, estimates, errors, post)
right.set_xlabel("effect")
save(figure, "method-outlier.png")
moved = np.abs(post.mean[:24, 0] - post_without.mean[:, 0]) / post_without.sd[:, 0]
print(f"the far client: 9.0 -> {post.mean[24, 0]:.2f}")
print(f"the others move by {np.median(moved):.2f} posterior sd (median), {moved.max():.2f} at most")

# %% [markdown]
# ## Noise that depends on the parameter
#
# Counts per hour at 200 sites, each watched for 4 to 12 hours.  The variance of a count is its mean.

# %%
rng = np.random.default_rng(4)
K = 200
theta = rng.choice([2.0, 5.0, 10.0], K, p=[0.5, 0.3, 0.2])
hours = rng.integers(4, 13, K)
rate = rng.poisson(theta * hours) / hours
poisson = vaneb.covariance.by_name("poisson", dimension=1, n_clients=K)
reports = vaneb.Reports(rate, n=hours, covariance=poisson, names=["rate"])
grid = np.linspace(0.05, 15, 600)
likelihood = reports.likelihood()
bumps = np.exp(likelihood.log_likelihood(grid[:, None]))
figure, axis = plt.subplots(figsize=(7.2, 2.7))
for k in np.argsort(rate)[[10, 60, 110, 150, 175, 195]]:
    axis.plot(grid, bumps[k] / bumps[k].max(), color=OWN, lw=1.2)
    axis.plot(rate[k], 0, "o", color=OWN, clip_on=False)
axis.set(xlabel="rate", ylabel="likelihood", title="Six sites: estimate (dot) and what it says of the rate")
save(figure, "method-likelihoods.png")

# %% [markdown]
# ## Atoms: the nonparametric maximum likelihood estimate, and its certificate

# %%
discrete = vaneb.VANEB(population="discrete").fit(reports).prior_
figure, axes = plt.subplots(1, 3, figsize=(10.5, 2.9))
axes[0].hist(rate, 45, color=OWN, alpha=0.45)
twin = axes[0].twinx()
twin.vlines(discrete.atoms[:, 0], 0, discrete.weights, color=POPULATION, lw=2)
twin.plot(discrete.atoms[:, 0], discrete.weights, "o", color=POPULATION, ms=4)
twin.set(ylim=(0, None), yticks=[])
axes[0].set(xlabel="rate", ylabel="sites", title=f"{len(discrete.weights)} atoms; the truth is 2, 5, 10")
one = np.array([[rate.mean()]])
for axis, atoms, weights, title in (
    (axes[1], one, np.ones(1), "one atom at the mean"),
    (axes[2], discrete.atoms, discrete.weights, "the fit"),
):
    value = gap(likelihood, atoms, weights, grid[:, None])
    axis.plot(grid, value, color=AFTER)
    axis.axhline(0, color="0.5", lw=0.8, ls="--")
    axis.plot(atoms[:, 0], np.zeros(len(atoms)), "o", color=POPULATION, ms=4)
    axis.set(xlabel="rate", ylabel="D", title=f"{title}: largest D = {value.max():.2g}")
axes[1].set_yscale("symlog")
axes[1].set_yticks([0, 1e4, 1e8, 1e12, 1e16])
save(figure, "method-atoms.png")
assert gap(likelihood, discrete.atoms, discrete.weights, grid[:, None]).max() < 1e-3

# %% [markdown]
# ## The whole of it as a page to keep

# %%
model = vaneb.VANEB().fit(reports)
post = model.personalize(reports)
assert root_mean_squared(post.mean[:, 0] - theta) < root_mean_squared(rate - theta)
vaneb.report.write_page("tour.html", vaneb.report.fit_content(model, post, reports, title="200 sites"))
