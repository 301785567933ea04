"""``vaneb federate`` with wrong input: one line that names the place and the remedy, and exit code 2."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from typer.testing import CliRunner

from vaneb import InvalidOption
from vaneb.cli import app
from vaneb.flower import checks, gate, keys, supernode
from vaneb.flower.keys import make_keys


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Keys of a trial."""
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder, ["localhost", "127.0.0.1"], ["a"])
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch, made) -> Path:
    """A folder with keys, data, and things that are not what they should be."""
    shutil.copytree(made, tmp_path / "keys")
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n2,3\n3,5\n" * 5)
    (tmp_path / "few.csv").write_text("x,y\n" + "1,2\n2,3\n3,5\n" * 3)
    (tmp_path / "columns.toml").write_text('columns = ["x", "dose"]\n')
    (tmp_path / "formulas.toml").write_text('formulas = ["y ~ x", "y ~ dose"]\n')
    (tmp_path / "both.toml").write_text('columns = ["y"]\nformulas = ["y ~ x"]\n')
    (tmp_path / "strict.toml").write_text("fewest_rows = 100\n")
    (tmp_path / "unknown.toml").write_text("fewest = 100\n")
    (tmp_path / "empty.csv").write_text("x,y\n")
    (tmp_path / "broken.parquet").write_text("not parquet")
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad.toml").write_text("x,y")
    (tmp_path / "good.toml").write_text("seed = 1\n")
    shutil.copytree(made, tmp_path / "strange")
    (tmp_path / "strange" / "nodes" / "a.crt").write_text("no certificate\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["federate", *arguments])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return " ".join(done.output.split())


CLIENT = ("client", "--name", "a", "--data")
SERVER = ("server", "--formula", "y ~ x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("keys", "new", "--client", "north pole"), "client 'north pole': use letters"),
        (("keys", "a.csv", "--client", "a"), "a.csv: cannot be a folder"),
        (("keys", "new", "--host", "no host"), "host 'no host': not a host name"),
        ((*CLIENT, "missing.csv"), "--data missing.csv: there is no such file"),
        ((*CLIENT, "folder"), "--data folder: a folder without images. Give a .csv or .parquet file"),
        ((*CLIENT, "a.txt"), "--data a.txt: the file must end in .csv or .parquet."),
        ((*CLIENT, "empty.csv"), "--data empty.csv: has no rows."),
        ((*CLIENT, "broken.parquet"), "--data broken.parquet: cannot be used"),
        ((*CLIENT, "few.csv"), "--data few.csv: 9 rows, but"),
        ((*CLIENT, "a.csv", "--policy", "no.toml"), "no.toml: there is no such policy"),
        ((*CLIENT, "a.csv", "--policy", "bad.toml"), "bad.toml: cannot be read"),
        ((*CLIENT, "a.csv", "--policy", "unknown.toml"), "unknown.toml: 'fewest' is not known"),
        (
            (*CLIENT, "a.csv", "--policy", "strict.toml"),
            "15 rows, but strict.toml lets nothing be said of fewer",
        ),
        ((*CLIENT, "a.csv", "--policy", "columns.toml"), "columns.toml: columns: 'dose' is not a column of"),
        ((*CLIENT, "a.csv", "--policy", "formulas.toml"), "formulas.toml: formulas: column dose: missing"),
        ((*CLIENT, "a.csv", "--policy", "both.toml"), "both.toml: formulas: column x: missing"),
        (("client", "--data", "a.csv", "--name", "../up"), "--name '../up': use letters"),
        (
            ("client", "--data", "a.csv", "--name", "b"),
            "keys/nodes/b: no such file (this client's private key)",
        ),
        ((*CLIENT, "a.csv", "--ca", "no.crt"), "no.crt: no such file"),
        ((*CLIENT, "a.csv", "--ca", "a.txt", "--key", "keys/nodes/a"), "a.txt: cannot be used"),
        ((*CLIENT, "a.csv", "--key", "a.txt"), "a.txt: cannot be used (Not OpenSSH private key format)"),
        ((*CLIENT, "a.csv", "--server", "a:1", "--server", "a:1"), "--server: give each of them once"),
        ((*CLIENT, "a.csv", "--server", "a:1", "--server", "b:1", "--once"), "--once is for one server only"),
        ((*CLIENT, "a.csv", "--server", "nonsense"), "--server nonsense: expected HOST:PORT"),
        ((*CLIENT, "a.csv", "--server", "127.0.0.1:1", "--patience", "0.1"), "no server at 127.0.0.1:1"),
        (("server",), "formula: missing"),
        (("server", "--formula", "y ~"), "--formula 'y ~': at the end: needs one response"),
        (("server", "--formula", "~ x"), "--formula '~ x': at character 1 ('~'): needs one response"),
        (("server", "--formula", "y ~ (x"), "--formula 'y ~ (x': at the end: cannot be read"),
        (("server", "--formula", "y ~ I(eval('1'))"), "there is no function 'eval'"),
        ((*SERVER, "--family", "cauchy"), "family: choose one of gaussian"),
        ((*SERVER, "--keys", "nowhere"), "nowhere/server.pem: missing. Make keys with"),
        ((*SERVER, "--keys", "strange"), "strange/nodes/a.crt: cannot be used"),
        ((*SERVER, "--port", "99999"), "--port 99999: must be a number from 1 to 65535."),
        ((*SERVER, "--host", "192.0.2.7"), "--host 192.0.2.7: not an address of this machine"),
        ((*SERVER, "--set", "toll=1"), "toll: not a setting of a federation. There are mode, formula"),
        ((*SERVER, "--set", "tol"), "--set tol: expected NAME=VALUE."),
        ((*SERVER, "--mode", "secure"), "lower, upper: needed for mode secure"),
        ((*SERVER, "--set", "epsilon=1"), "radius: a private report needs a public ball"),
        (("server", "--mode", "network"), "experiment and method: needed for mode network"),
        (("server", "--mode", "network", "--config", "no.toml"), "--config no.toml: there is no such file"),
        (("server", "--mode", "network", "--config", "bad.toml", "--method", "fedavg"), "not TOML"),
        (("server", "--mode", "network", "--config", "good.toml", "--method", "magic"), "magic"),
        (("simulate", "--data", "a.csv", "--client", "site", "--formula", "y ~ x"), "column site: missing"),
        (("simulate", "--data", "no.csv", "--client", "site"), "--data no.csv: there is no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_named_with_its_remedy(here, arguments, words):
    assert words in complaint(*arguments)


def test_a_port_that_is_taken(here):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port {port}: another program listens there" in complaint(*SERVER, "--port", port)


def test_a_folder_of_another_model_is_refused_before_anything_starts(here):
    (here / "federation" / "reports").mkdir(parents=True)
    (here / "federation" / "reports" / "1.npz").write_bytes(b"")
    (here / "federation" / "model.json").write_text("{}")
    assert "federation: belongs to another model" in complaint(*SERVER)


def test_certificates_that_have_expired(here, monkeypatch):
    monkeypatch.setattr(keys, "DAYS", 0.001)
    make_keys(here / "old", ["localhost"], ["a"])
    today = datetime.datetime.now(datetime.UTC)
    for arguments in ((*SERVER, "--keys", "old"), (*CLIENT, "a.csv", "--ca", "old/ca.crt")):
        assert f"expired on {today:%Y-%m}" in complaint(*arguments)


@contextlib.contextmanager
def tls_server(folder: Path):
    """Something that shows the certificate in a folder; yields its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def accept() -> None:
            while True:
                try:
                    near, _ = plain.accept()
                    with contextlib.suppress(OSError), context.wrap_socket(near, server_side=True):
                        pass
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield plain.getsockname()[1]


def test_a_server_with_another_authority_is_not_trusted(here):
    make_keys(here / "other", ["localhost", "127.0.0.1"], ["a"])
    with tls_server(here / "keys") as port:
        address = f"127.0.0.1:{port}"
        said = complaint(*CLIENT, "a.csv", "--server", address, "--ca", "other/ca.crt")
        assert f"--server {address}: its certificate is not to be trusted" in said


def test_a_server_without_tls_is_told_apart(here):
    node = here / "keys" / "nodes" / "a"
    with socket.create_server(("127.0.0.1", 0)) as plain:
        address = f"127.0.0.1:{plain.getsockname()[1]}"

        def answer() -> None:
            near, _ = plain.accept()
            near.recv(100)
            near.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            near.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(InvalidOption, match="does not speak TLS"):
            checks.greeted(
                address, gate.client_context(here / "keys" / "ca.crt", node.with_suffix(".crt"), node)
            )


def test_a_nodes_log_is_put_into_words():
    start = "Starting Flower SuperNode\n"
    log = f"{start}old\n{start}[code: 2004] Failed to activate SuperNode.\n"
    assert "puts north.crt into the server's keys/nodes" in checks.why_ended(log, "north")
    assert checks.why_ended(f"{start}ERROR: no room\nbye", "north") == "ERROR: no room"


def test_a_client_ends_only_when_the_server_knows_that_it_has_its_result(tmp_path):
    log = tmp_path / "supernode.log"
    asked = "Starting Flower SuperNode\nReceiving: query.report\nSent successfully\nReceiving: query.other\n"
    log.write_text("Receiving: query.report\n" + asked)
    assert not supernode._all_answered(log)
    log.write_text("Receiving: query.report\n" + asked + "Sent successfully\n")
    assert supernode._all_answered(log)


def test_keys_are_made_once(here):
    done = CliRunner().invoke(app, ["federate", "keys", "keys", "--client", "a"])
    assert done.exit_code == 0
    assert "everything is there already" in done.output
