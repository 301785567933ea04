"""The example that a newcomer pastes, as it stands: TLS, authentication, a free port, a clean end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from vaneb.flower.processes import free_port

SCRIPT = Path(__file__).parents[2] / "examples" / "federation" / "three_nodes.sh"


def processes_in(folder: Path) -> list[str]:
    """Command lines of running processes that mention the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes that are left in /proc")
def test_three_nodes_on_loopback(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PORT": str(free_port())}
    done = subprocess.Popen(
        ["sh", str(SCRIPT)],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = done.communicate(timeout=500)
    finally:
        if done.poll() is None:
            os.killpg(done.pid, signal.SIGTERM)
            done.wait(30)
    assert done.returncode == 0, output
    assert "served       3: east, north, south" in output
    for name in ("north", "south", "east"):
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["names"] == ["Intercept", "dose"]
        assert f"{name} {result['mean']}" in output
    # Encrypted and authenticated: the SuperLink was started with both.
    log = (tmp_path / "federation" / "flower" / "superlink.log").read_text(errors="replace")
    assert "https" in log.lower() or "TLS" in log
    assert processes_in(tmp_path) == []
