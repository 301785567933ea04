#!/bin/sh
# Every cell of every sweep: 21 cells, 8 estimators of ours, 6 of the paper's.  Cut it when you like; it goes on where it was.
#   sh benchmarks/study/run.sh [workers] [replicates]
set -e
here=$(dirname "$0")
vaneb study all --sweep both --replicates "${2:-20}" --workers "${1:-2}" --seed 0 -o "$here/results"
vaneb study theory --replicates "${2:-20}" --workers "${1:-2}" --seed 0 -o "$here/results"
vaneb study density --replicates "${2:-20}" --workers "${1:-2}" --seed 0 -o "$here/results"
vaneb study all --paper --replicates "${2:-20}" --workers "${1:-2}" --seed 0 -o "$here/results"
vaneb study prior -o "$here/results"
python "$here/render.py"
