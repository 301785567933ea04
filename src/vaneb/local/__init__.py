"""At the client: from rows to an estimate, how it ended, and the covariance function of its noise."""
