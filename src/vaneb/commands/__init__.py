"""One command of the command line per module: parse, call, write; the work is done elsewhere."""
