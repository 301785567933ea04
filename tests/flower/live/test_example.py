"""The example that a newcomer pastes, as it stands: TLS, authentication, a free port, a clean end.

Where the system allows it, without any network but loopback.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower.deployment import running_with
from vaneb.flower.processes import free_port

SCRIPT = Path(__file__).parents[3] / "examples" / "federation" / "three_nodes.sh"


def no_network() -> list[str]:
    """What to start a command with, so that loopback is its only network; empty if not to be had."""
    alone = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        possible = subprocess.run([*alone, "true"], capture_output=True).returncode == 0
    except OSError:
        possible = False
    return alone if possible else []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes that are left in /proc")
def test_three_nodes_on_loopback(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PORT": str(free_port())}
    done = subprocess.Popen(
        [*no_network(), "sh", str(SCRIPT)],
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
    assert running_with(str(tmp_path)) == []
