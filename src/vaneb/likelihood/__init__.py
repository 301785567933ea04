"""Log-likelihoods of atoms, block by block of clients: all that a solver sees of them."""
