"""What runs at the coordinator: reads the settings, opens the archive, runs the mode that was asked for."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from vaneb.errors import VanebError
from vaneb.flower.archive import Archive
from vaneb.flower.exchange import Channel
from vaneb.flower.settings import Settings

app = ServerApp()
log = logging.getLogger(__name__)

#: Names the server's folder; an environment variable, since clients see the run config.
FOLDER = "VANEB_FEDERATION"
#: The page of the federation, in that folder.
PAGE = "federation.html"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one mode; what it did, or why it could not, is in ``outcome.json``, and on a page beside it."""
    folder = Path(os.environ.get(FOLDER, "federation"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        settings = Settings.from_run_config(context.run_config)
        archive = Archive.open(folder, settings)
        run(grid, context, settings, archive)
        from vaneb.report import federation_content, write_page

        write_page(folder / PAGE, federation_content(folder))
    except VanebError as error:
        Archive(folder).keep_failure(str(error))
        log.error("%s", error)
    except Exception as error:
        Archive(folder).keep_failure(f"unexpected {type(error).__name__}; the log has the details")
        raise


def run(grid: Grid, context: Context, settings: Settings, archive: Archive) -> None:
    channel = Channel(grid, settings.timeout)
    if settings.mode == "reports":
        from vaneb.flower.one_shot import run_reports

        run_reports(channel, settings, archive)
    elif settings.mode == "evaluate":
        from vaneb.flower.evaluation import run_evaluation

        run_evaluation(channel, settings, archive)
    elif settings.mode == "secure":
        from vaneb.flower.secure import run_secure

        run_secure(channel, context, settings, archive)
    else:
        from vaneb.flower.networks import run_networks

        run_networks(channel, settings, archive)
