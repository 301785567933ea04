"""Ports for processes on this machine."""

import socket

import pytest

from vaneb.flower import processes


def test_ports_are_free_all_different_and_not_those_of_outgoing_connections():
    ports = [processes.free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert set(ports) <= set(processes.PORTS)
    assert max(ports) < 32_768
    for port in ports:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))


def test_a_port_in_use_is_not_given_and_none_left_is_said(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", processes.free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(processes, "PORTS", range(port, port + 1))
        monkeypatch.setattr(processes, "_given", set())
        with pytest.raises(processes.FederationFailed, match="no port"):
            processes.free_port()
