"""What a rehearsal finds, from what the hosts say about themselves."""

from __future__ import annotations

import copy
import socket
import threading
from typing import Any

import pytest

from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Connections, Target
from workbench.launch.hosts.facts import facts
from workbench.launch.hosts.host_plan import HostPlan
from workbench.launch.hosts.ranks_on_hosts import host_environment
from workbench.launch.hosts.reach import Port, PortAddress, reach
from workbench.launch.hosts.rehearsal import Endpoint, HostProblem, differences, facing, failure, rehearse, suspicions
from workbench.launch.hosts.remote_shell import LocalShell, Srun, Ssh, explain
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.start import mpi


def two_hosts(**changes: Any) -> dict[str, Any]:
    """Facts of this machine, as if of two; the second one's are changed."""
    one = facts(["python", __file__])
    other = copy.deepcopy(one) | {"machine": "another"} | changes
    return {"a": one, "b": other}


def test_hosts_that_are_alike_pass() -> None:
    """Nothing is said about them."""
    assert differences(two_hosts()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"python": "3.9.1"}, "Python is 3.9.1, but"),
        ({"packages": {}}, "numpy is missing, but"),
        ({"code": "beef"}, "the workbench's code (by its hash) is beef"),
        ({"files": {__file__: "beef"}}, f"{__file__} (by its hash) is beef"),
        ({"files": {__file__: ""}}, f"there is no file {__file__}"),
        ({"imports": {"helper.py": "beef"}}, "helper.py (by its hash) is beef, but missing on a"),
        ({"space": {"/dev/shm": 1 << 20}}, "/dev/shm is full: 1 MiB are free"),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], said: str) -> None:
    """The host that differs from the first one, in what, and what to do."""
    problems = differences(two_hosts(**changes))
    assert any(problem.host == "b" and problem.what.startswith(said) and problem.cure for problem in problems)


def test_what_is_suspicious_is_said() -> None:
    """A clock that is off by an hour, a host name twice, more ranks than cores: a warning each, and no error."""
    found = two_hosts(host="another", cores=2)
    found["a"]["clock"], found["b"]["clock"] = 0.2, -1.0
    assert suspicions(found, {"a": 1, "b": 2}) == []
    found["b"]["clock"] = -3600.0
    found["b"]["host"] = found["a"]["host"]
    clock, name, cores = suspicions(found, {"a": 1, "b": 3})
    assert "b: its clock is 3600 s behind this one's" in clock
    assert f"b: its host name is {socket.gethostname()}, as that of a" in name
    assert "b: 3 ranks share 2 cores" in cores
    assert "-H b:2" in cores


def test_one_machine_under_two_names() -> None:
    """It would get twice the ranks."""
    found = two_hosts()
    found["b"]["machine"] = found["a"]["machine"]
    assert "the same machine as a" in differences(found)[0].what
    found["b"]["machine"] = "another"
    found["c"] = copy.deepcopy(found["b"])
    assert [(each.host, each.what) for each in differences(found)] == [("c", "it is the same machine as b")]


@pytest.mark.parametrize(
    ("runs", "said"), [(False, "the job was not started"), (True, "the job is not joined by new hosts")]
)
def test_a_failed_rehearsal_says_what_becomes_of_the_job(runs: bool, said: str) -> None:
    """Where it runs already, on other hosts, it goes on: it is not said that nothing was started."""
    assert failure([HostProblem("b", "x", "y")], runs) == f"The rehearsal failed, and {said}: b: x. y"
    processes = ProcessTree(mpi.environment(1))
    connections = Connections([Target("here", 1, LocalShell())], processes, "/no such folder")
    try:
        with pytest.raises(LaunchError, match=f"{said}: here: it has no folder"):
            rehearse(connections, [], limit_s=20.0, runs=runs)
    finally:
        connections.close()
        processes.stop()


HOSTS = {
    "a": [("docker0", "172.17.0.1", 16), ("eth0", "10.0.0.1", 24), ("eth0", "fd00::1", 64)],
    "b": [("docker0", "172.17.0.1", 16), ("eth1", "10.0.0.2", 24), ("eth1", "fd00::2", 64)],
}
WAYS = {
    "a": {"172.17.0.1": "172.17.0.1", "10.0.0.2": "10.0.0.1", "fd00::2": "fd00::1"},
    "b": {"172.17.0.1": "172.17.0.1", "10.0.0.1": "10.0.0.2", "fd00::1": "fd00::2"},
}


def test_the_interface_between_the_hosts_is_found() -> None:
    """Not a bridge for containers, which is the same everywhere; IPv4, or IPv6 where there is nothing else."""
    assert facing(HOSTS, WAYS) == ({"a": ("eth0", "10.0.0.1"), "b": ("eth1", "10.0.0.2")}, [])
    only6 = {name: [each for each in listed if ":" in each[1]] for name, listed in HOSTS.items()}
    assert facing(only6, WAYS)[0] == {"a": ("eth0", "fd00::1"), "b": ("eth1", "fd00::2")}
    assert facing(HOSTS, WAYS, ["eth0", "eth1"])[0]["b"] == ("eth1", "10.0.0.2")


def test_hosts_without_a_common_network_are_named() -> None:
    """With the interfaces that they have."""
    found, problems = facing(HOSTS, {"a": {}, "b": {}})
    assert (found, [problem.host for problem in problems]) == ({}, ["a", "b"])
    assert "eth0 10.0.0.1" in problems[0].what
    assert [problem.host for problem in facing(HOSTS, WAYS, ["eth0"])[1]] == ["b"]


def test_ranks_fill_the_hosts_in_order() -> None:
    """A host that gets none is left out; too few slots are an error."""
    plan = HostPlan([Target("a", 2, Ssh()), Target("b", 3, Ssh()), Target("c", 1, Ssh())])
    assert plan.ranks(4) == {"a": [0, 1], "b": [2, 3]}
    with pytest.raises(LaunchError, match="7 ranks do not fit the 6 slots of a, b, c"):
        plan.ranks(7)


def test_everything_uses_one_interface() -> None:
    """Unless the user has said otherwise."""
    first, endpoint = Endpoint("a", "eth0", "10.0.0.1", (5, 6)), Endpoint("b", "eth1", "10.0.0.2", (7, 8))
    found = host_environment(mpi.LOOPBACK | {"UCX_NET_DEVICES": "mlx5_0:1"}, endpoint, first)
    assert found["UCX_NET_DEVICES"] == "mlx5_0:1"
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == ("eth1", "=eth1")
    assert "OMPI_MCA_btl" not in found
    assert (found["WORKBENCH_HOST_ADDRESS"], found["WORKBENCH_CONTROL_ADDRESS"]) == ("10.0.0.2", "10.0.0.1")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["WORKBENCH_RENDEZVOUS_PORT"]) == ("10.0.0.1", "6", "5")


def test_a_port_is_reached_and_a_stranger_on_it_is_seen() -> None:
    """Who answers with another word is another program; where nobody listens the reason is named."""
    port, other = Port("127.0.0.1"), socket.create_server(("127.0.0.1", 0))
    shut = socket.create_server(("127.0.0.1", 0))
    number = shut.getsockname()[1]
    shut.close()
    guests = list[socket.socket]()
    with other, socket.create_server(("127.0.0.1", 0)) as small:
        silent = socket.create_connection(("127.0.0.1", port.number))  # a guest that says nothing keeps nobody waiting
        places = {
            "right": PortAddress("127.0.0.1", port.number, port.word),
            "other": PortAddress("127.0.0.1", port.number, "another word"),
            "mute": PortAddress("127.0.0.1", other.getsockname()[1], "word"),
            "shut": PortAddress("127.0.0.1", number, "word"),
            "small": PortAddress("127.0.0.1", small.getsockname()[1], "word"),
        }
        threading.Thread(target=lambda: guests.append(small.accept()[0]) or guests[0].send(b"word")).start()
        found = reach(places, 0.5, port)
        guests[0].close()
        silent.close()
    port.close()
    assert found["right"] == ""
    assert "another program answers" in found["other"]
    assert found["mute"] == "no answer within 0.5 s"
    assert found["shut"] == "connection refused"
    assert found["small"] == "small packets arrive, and large ones do not within 0.5 s"


def test_no_free_port() -> None:
    """The range and the setting are named."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=rf"no port from {number} to {number} \(WORKBENCH_PORTS\) is free at 127.0.0.1"
        ):
            Port("127.0.0.1", number, number)


@pytest.mark.parametrize(
    ("code", "text", "cure"),
    [
        (255, "root@b: Permission denied (publickey).", "ssh-copy-id b"),
        (255, "Host key verification failed.", "ssh b"),
        (255, "ssh: Could not resolve hostname b: Name or service not known", "DNS"),
        (255, "ssh: connect to host b port 22: Connection timed out", "firewall"),
        (255, "", "ping -M do -s 1472 b"),
        (96, "", "Share it"),
        (97, "", "same environment"),
        (98, "", "same environment"),
        (3, "Segmentation fault", "ssh -o BatchMode=yes b"),
    ],
)
def test_why_an_agent_did_not_start(code: int, text: str, cure: str) -> None:
    """Each way in which ssh fails has a cure."""
    what, said = explain("b", code, text, "/home")
    assert what
    assert cure in said


def test_cures_fit_the_shell() -> None:
    """With ssh's port and key where the user named them; under Slurm with srun, and nothing of ssh or --sync."""
    ssh = Ssh(port=2222, identity="key")
    said = "REMOTE HOST IDENTIFICATION HAS CHANGED!\nHost key verification failed."
    assert "ssh-keygen -R '[b]:2222'" in explain("b", 255, said, "/home", ssh)[1]
    assert "ssh -o BatchMode=yes -i key -p 2222 b" in explain("b", 3, "", "/home", ssh)[1]
    assert "--sync" in explain("b", 96, "", "/home", ssh)[1]
    assert "--sync" not in explain("b", 96, "", "/home", Srun())[1]
    assert "srun --nodes=1 --ntasks=1 --nodelist=b" in explain("b", 3, "Permission denied", "/home", Srun())[1]
    late = "slurmstepd: error: *** STEP 7.0 ON b CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***"
    assert explain("b", 143, late, "/home", Srun())[0] == "Slurm's time limit of the job is over"
