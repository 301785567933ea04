"""What stands below the options in ``--help``: lines to try, and the exit codes."""

from __future__ import annotations

EXAMPLES = {
    "vaneb": (
        "vaneb demo",
        "vaneb check hospitals.csv",
        "vaneb personalize hospitals.csv -o out.csv --report page.html",
        'vaneb run pupils.csv --client school --formula "score ~ ses" -o out.csv',
    ),
    "personalize": (
        "vaneb personalize reports.csv -o out.csv --report page.html",
        "vaneb personalize hospitals.csv --client hospital --estimate effect --se se -o out.csv",
        "vaneb personalize fits.csv --estimate 'b_*' --se 'se_*' -o out.parquet",
        "vaneb personalize rates.csv --estimate rate --n cases --variance-function binomial -o out.csv",
        "vaneb personalize new.csv --prior-in population.json -o out.csv",
        "cat reports.csv | vaneb personalize - --json | jq '.clients[].theta_effect'",
    ),
    "run": (
        'vaneb run pupils.csv --client school --formula "score ~ ses" -o out.csv --report page.html',
        'vaneb run visits.xlsx --client clinic --formula "cured ~ dose" --family binomial -o out.csv',
        'vaneb run claims.csv --client region --formula "n ~ age" --family poisson --offset log_years -o -',
    ),
    "decide": (
        "vaneb personalize hospitals.csv -o out.csv --posterior-out posterior.parquet",
        "vaneb decide posterior.parquet --highest 10% --wrong 10% -o decisions.csv",
        "vaneb decide posterior.parquet --of mortality --benchmark 0.05 -o decisions.csv",
        "vaneb decide posterior.parquet --of treated=1 --of control=-1 --json | jq '.above'",
    ),
    "predict": (
        'vaneb run pupils.csv --client school --formula "score ~ ses" --save model.json',
        "vaneb predict model.json new.csv -o predictions.csv",
        "vaneb predict model.json new.csv --interval prediction --level 0.95 -o -",
    ),
    "check": (
        "vaneb check hospitals.csv",
        "vaneb check hospitals.csv --client Klinik --estimate Effekt --se SE --decimal ,",
        'vaneb check pupils.csv --client school --formula "score ~ ses"',
        "vaneb check hospitals.xlsx --json | jq '.problems[]'",
    ),
    "report": (
        'vaneb report pupils.csv --client school --formula "score ~ ses" -o reports.csv',
        'vaneb report visits.csv --client clinic --formula "cured ~ dose" --family binomial -o -',
    ),
    "study": (
        "vaneb study poisson --sweep K --replicates 2 --workers 2 -o study",
        "vaneb study theory -o theory",
    ),
    "demo": ("vaneb demo",),
    "train": ("vaneb train -o digits --report page.html", "vaneb train experiment.toml -o run --workers 2"),
    "table": ("vaneb table run", "vaneb table run other --format markdown --value worst_tenth -o table.md"),
    "compare": ("vaneb compare run other -o figures --format svg",),
    "watch": ("vaneb watch run", "vaneb watch study --port 0"),
    "federate": (
        "vaneb federate keys --client north --client south",
        'vaneb federate server --formula "y ~ x" --nodes 2',
        "vaneb federate client --data north.csv --name north --once",
    ),
    "keys": (
        "vaneb federate keys --host server.example.org --client north --client south",
        "vaneb federate keys --site --client north --renew",
    ),
    "init": (
        'vaneb federate init /srv/vaneb --host stats.example.org --formula "y ~ x" --nodes 3',
        "vaneb federate init /srv/vaneb --site north --data /data/north.csv --server stats.example.org:9092",
    ),
    "status": ("vaneb federate status federation", "vaneb federate status north --json"),
    "server": ('vaneb federate server --formula "y ~ x" --nodes 2 --folder federation',),
    "client": ("vaneb federate client --data north.csv --name north --server 10.0.0.5:9092 --once",),
    "release": ("vaneb federate release trial --folder north",),
    "ledger": ("vaneb federate ledger north",),
    "simulate": ('vaneb federate simulate --data all.csv --client site --formula "y ~ x"',),
}
EXIT_CODES = (
    "0 done",
    "1 a bug in vaneb, with a traceback",
    "2 the options or the input cannot be used; nothing was written",
    "3 written, but the fit did not reach its tolerance; in a federation: not everybody was served",
    "130, 143 interrupted, terminated",
)


def epilog(command: str) -> str:
    """The end of the help of a command."""
    # \b keeps lines as they are.
    text = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[command])
    if command == "vaneb":
        text += "\n\n\b\nExit codes:\n" + "\n".join(f"  {line}" for line in EXIT_CODES)
    return text
