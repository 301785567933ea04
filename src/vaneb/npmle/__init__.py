"""Nonparametric maximum likelihood: one solver idea per file."""
