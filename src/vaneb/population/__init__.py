"""Populations of clients: a posterior over Gaussian mixtures, learnt from sums over clients."""
