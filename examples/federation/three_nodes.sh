#!/bin/sh
# Three clients and a server on this machine, with TLS and node authentication.
# Paste it into an empty folder:  sh three_nodes.sh
# Set PORT to use another port than 9092.
set -eu
PORT=${PORT:-9092}

# Data that stay where they are: one file for each client.
python - <<'PYTHON'
import csv, random

random.seed(1)
for number, name in enumerate(["north", "south", "east"]):
    with open(f"{name}.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["dose", "response"])
        for _ in range(40):
            dose = random.uniform(0, 2)
            rows.writerow([dose, 1 + 0.3 * number + 2 * dose + random.gauss(0, 1)])
PYTHON

# Certificates for the server and for each client.  In earnest, each site makes its own
# (vaneb federate keys --site --client NAME) and sends NAME.crt, never its key, to the server's operator.
vaneb federate keys keys --client north --client south --client east

# A client beside each data set; it ends when its result is there.
clients=""
trap 'kill $clients 2>/dev/null || true' EXIT
for name in north south east; do
    vaneb federate client --data "$name.csv" --name "$name" --server "127.0.0.1:$PORT" --once &
    clients="$clients $!"
done

# The server asks for reports, fits the population, gives every client its own estimate, and ends.
vaneb federate server --formula "response ~ dose" --nodes 3 --port "$PORT" --wait 300 --timeout 300

wait
for name in north south east; do
    echo "$name" "$(python -c "import json; print(json.load(open('$name/result.json'))['mean'])")"
done
