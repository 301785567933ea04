"""``vaneb watch``: serves, refreshes, and stops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner

from browser import opened
from result_folders import result, study_folder
from vaneb.cli import app
from vaneb.fl.results import append_rows
from vaneb.report.server import make_server


@pytest.fixture
def served(tmp_path):
    with make_server(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield tmp_path, f"http://localhost:{server.server_port}/"
        server.shutdown()
        thread.join()


def get(address: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
        return answer.read().decode()


def test_content_follows_the_folder(served):
    folder, address = served
    assert "Nothing to show yet" in get(address)
    before = json.loads(get(address + "version"))["version"]
    append_rows(folder / "results.csv", [result("FedAvg", 70.0, protocol="balanced")])
    assert json.loads(get(address + "version"))["version"] > before
    assert "70.0%" in json.loads(get(address + "content.json"))["sentence"]


def test_only_this_machine_and_only_this_page(served):
    _, address = served
    for path, headers, code in (
        ("", {"Host": "evil.example"}, 403),
        ("../etc/passwd", {}, 404),
        ("x", {}, 404),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(address + path, **headers)
        assert refused.value.code == code


def test_an_open_page_refreshes_itself_and_keeps_what_was_chosen(driver, served):
    folder, address = served
    append_rows(folder / "results.csv", [result("FedAvg", 70.0, protocol="balanced")])
    assert opened(driver, address) == []
    assert "70.0%" in driver.find_element("id", "sentence").text
    append_rows(folder / "results.csv", [result("Ditto", 90.0, protocol="balanced")])
    deadline = time.monotonic() + 15
    while "90.0%" not in driver.find_element("id", "sentence").text:
        assert time.monotonic() < deadline, "the page did not refresh"
        time.sleep(0.2)
    assert "last result" in driver.find_element("id", "live").text
    assert driver.get_log("browser") == []


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
def test_ctrl_c_stops_it_cleanly(tmp_path):
    study_folder(tmp_path)
    command = [sys.executable, "-m", "vaneb", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        address = re.search(r"http://localhost:\d+/", process.stderr.readline()).group()
        assert "Simulation study" in get(address)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == "stopped.\n"


def test_what_cannot_be_watched(tmp_path):
    done = CliRunner().invoke(app, ["watch", str(tmp_path / "missing")])
    assert done.exit_code == 2
    assert "is not a folder" in done.output
    with make_server(tmp_path, 0) as taken:
        done = CliRunner().invoke(app, ["watch", str(tmp_path), "--port", str(taken.server_port)])
        assert done.exit_code == 2
        assert "cannot be used" in done.output
