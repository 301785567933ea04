"""The simulation study: a prior on five curves, three scenarios, and the sweeps over them."""
