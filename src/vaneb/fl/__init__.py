"""Federated training of networks (install ``vaneb[nn]``).

An algorithm is a value made of pure functions (``algorithm``), one short file each in ``algorithms``.
The engine (``engine``, ``experiment``) owns looping, sampling, worker processes, client states,
checkpoints, evaluation and progress.  Data, partition, shift, models, metrics and results each have
their own module.
"""
