"""vaneb: personalised estimation across many clients by variance-aware nonparametric empirical Bayes."""
