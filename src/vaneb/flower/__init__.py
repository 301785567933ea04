"""VANEB as a federation on Flower: the only place that imports ``flwr`` (``pip install 'vaneb[site]'``).

settings        what a run is: formula, family, mode, privacy; the same on both sides
wire            trees of numbers and text  <->  Flower's records, and files
exchange        the server asks, clients answer; whoever is there, or not, is in ``attendance``
forwarding      HTTP that passes on what is on a list: the server's ``door``, and the ``gate`` of each site
client_app      what runs beside the data, with ``client_data`` and ``network_client``
keeper          the process that has rows, policy and ledger; Flower runs ``messenger``, in a ``sandbox``
policy, ledger  what a site answers, and what has left it; ``disclosure`` finds what that tells of single rows
site_sums       what a site says of its rows; ``lossless`` fits populations to it
agreement       clients of a secure sum tell each other which question they answer
server_app      what runs at the coordinator: one of ``one_shot``, ``evaluation``, ``secure``, ``networks``
archive         what outlives the server
processes       SuperLink and SuperNodes as processes that are always stopped again; ``control`` tells them
                what to do, ``supernode`` keeps a client's there
checks, keys    what the command line looks at before anything starts, and certificates
service, status what an administrator is given to run it, and how it stands; ``journal`` has what happened
"""
