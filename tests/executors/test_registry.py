"""Executors check in at the launcher, strangers do not, and scripts run there as with ssh."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attackers import Recorder, cut_off, noises, visit
from executors import end, executors, start
from running import eventually

from workbench.common.secret.channel import SealedChannel
from workbench.common.secret.handshake import connect
from workbench.common.secret.listener import MOST
from workbench.common.secret.seal import derived
from workbench.errors import LaunchError
from workbench.executors import executor
from workbench.executors.client import LOST
from workbench.executors.executor import PURPOSE, About, Invitation, serve
from workbench.executors.registry import ExecutorRegistry
from workbench.launch.hosts.remote_shell import Relay


@pytest.fixture
def board() -> Iterator[ExecutorRegistry]:
    """One, on loopback."""
    with ExecutorRegistry("127.0.0.1") as found:
        yield found


def client(board: ExecutorRegistry, script: str, host: str = "") -> subprocess.Popen[bytes]:
    """What the launcher starts to run a script on a host."""
    words = Relay(board.path).command(host or board.hosts()[0][0], script)
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_executors_of_a_machine_are_one_host_with_a_slot_each(board: ExecutorRegistry) -> None:
    """Its name is the machine's, and when one is lost, so is its slot."""
    with executors(board, 3) as processes:
        assert board.hosts() == [(socket.gethostname(), 3)]
        processes[1].kill()
        assert eventually(lambda: board.hosts() == [(socket.gethostname(), 2)])
        (lost,) = board.lost()
        assert lost.endswith(f"@{socket.gethostname()}")
        assert lost.startswith("task ")


def test_another_machine_is_another_host(board: ExecutorRegistry) -> None:
    """Executors in containers have host names of their own."""
    if os.getuid() != 0:
        pytest.skip("needs root, for a host name of its own")
    other = start(board.invitation, "task 9", host="elsewhere")
    with executors(board, 1):
        board.wait_for(2, timeout_s=30.0)
        assert sorted(board.hosts()) == sorted([(socket.gethostname(), 1), ("elsewhere", 1)])
        assert sorted(target.slots for target in board.targets()) == [1, 1]
    assert end(other) == 0


def test_all_executors_end_with_the_board(board: ExecutorRegistry) -> None:
    """They are told that the job is over, and say so."""
    with executors(board, 2) as processes:
        board.close()
        assert [process.wait(20.0) for process in processes] == [0, 0]
        assert [process.stdout.read() for process in processes if process.stdout] == ["over\n"] * 2


def test_an_executor_whose_launcher_dies_ends(board: ExecutorRegistry) -> None:
    """Its connection is closed without a word."""
    with executors(board, 1) as (process,):
        board.executors()[0].channel.shut()
        assert process.wait(20.0) == 0
        assert process.stdout
        assert process.stdout.read() == "lost\n"


def test_scripts_run_as_with_ssh(board: ExecutorRegistry) -> None:
    """Input, both outputs and the exit code are carried, large ones too; several run at once."""
    with executors(board, 1):
        data = os.urandom(3 << 20)
        clients = [client(board, f"cat; echo done {i} >&2; exit {i}") for i in range(3)]
        for i, each in enumerate(clients):
            out, err = each.communicate(data, timeout=30.0)
            assert (out == data, err, each.returncode) == (True, f"done {i}\n".encode(), i)


def test_a_script_goes_on_after_its_input_has_ended(board: ExecutorRegistry) -> None:
    """The executor looks a few times a second; the script's time counts from the end of its input."""
    with executors(board, 1):
        each = client(board, "cat; sleep 0.7; echo done; exit 3")
        out, _ = each.communicate(b"all of it\n", timeout=30.0)
        assert (out, each.returncode) == (b"all of it\ndone\n", 3)


def test_a_script_that_is_killed_tells_so(board: ExecutorRegistry) -> None:
    """Its exit code is a shell's."""
    with executors(board, 1):
        each = client(board, "kill -9 $$")
        each.communicate(timeout=30.0)
        assert each.returncode == 128 + 9


def test_a_script_ends_with_its_client(board: ExecutorRegistry, tmp_path: Path) -> None:
    """A client that is killed ends the script's input, which the agent takes as the end."""
    with executors(board, 1):
        mark = tmp_path / "ended"
        each = client(board, f"echo begun; cat >/dev/null; touch {mark}")
        assert each.stdout
        assert each.stdout.readline() == b"begun\n"
        each.kill()
        each.communicate()
        assert eventually(mark.exists)


def test_a_script_that_does_not_listen_is_killed(board: ExecutorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a while after its input has ended."""
    monkeypatch.setattr(executor, "_END_S", 0.5)
    guest = threading.Thread(target=serve, args=(board.invitation, About("task 0")))
    guest.start()
    board.wait_for(1, timeout_s=10.0)
    each = client(board, "echo $$; sleep 600 </dev/null")
    assert each.stdout
    pid = int(each.stdout.readline())
    each.kill()
    each.communicate()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    board.close()
    guest.join(20.0)
    assert not guest.is_alive()


def test_an_executor_that_dies_is_lost_to_its_client(board: ExecutorRegistry) -> None:
    """The client ends as ssh does whose connection is cut."""
    with executors(board, 1) as (process,):
        each = client(board, "echo begun; exec cat")
        assert each.stdout
        assert each.stdout.readline() == b"begun\n"
        process.kill()
        each.communicate(timeout=30.0)
        assert each.returncode == LOST


def test_a_host_without_executor_is_an_error(board: ExecutorRegistry) -> None:
    """Its name is in it."""
    with executors(board, 1):
        each = client(board, "true", host="nowhere")
        _, err = each.communicate(timeout=30.0)
        assert (each.returncode, err) == (LOST, b"no executor of nowhere answers\n")


def test_too_few_executors_is_an_error(board: ExecutorRegistry) -> None:
    """It says how many came."""
    with executors(board, 1), pytest.raises(LaunchError, match=r"1 of 2 executors had started after 0.3 s"):
        board.wait_for(2, timeout_s=0.3)
    with pytest.raises(LaunchError, match="the engine says no"):
        board.wait_for(2, timeout_s=30.0, failed=lambda: "the engine says no")


def test_a_taken_port_is_an_error() -> None:
    """The range that the user gave is named."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"no port from {port} to {port} \(WORKBENCH_PORTS\) is free"):
            ExecutorRegistry("127.0.0.1", (port, port))


# --- strangers ----------------------------------------------------------------------------------------


def test_strangers_are_not_admitted(board: ExecutorRegistry, tmp_path: Path) -> None:
    """Whatever they say: they are cut off, nothing of it is unpickled, and executors still come."""
    address = board.invitation.address, board.invitation.port
    for noise in noises(tmp_path / "bomb"):
        with visit(address) as stranger:
            try:
                stranger.sendall(noise)
            except OSError:
                continue
            assert cut_off(stranger)
    assert not (tmp_path / "bomb").exists()
    with executors(board, 1):
        assert len(board.executors()) == 1


def test_silent_strangers_keep_no_executor_away(board: ExecutorRegistry) -> None:
    """More of them than are held at once."""
    address = board.invitation.address, board.invitation.port
    strangers = [socket.create_connection(address, 10.0) for _ in range(5 * MOST)]
    with executors(board, 1):
        assert len(board.executors()) == 1
    for stranger in strangers:
        stranger.close()


def test_an_executor_of_another_job_is_told_so(board: ExecutorRegistry) -> None:
    """It has another secret."""
    place = board.invitation
    with pytest.raises(LaunchError, match=r"does not reach the launcher at 127\.0\.0\.1 port"):
        serve(Invitation(place.address, place.port, bytes(32)), About("task 0"), timeout_s=10.0)
    assert board.executors() == []


def test_nothing_can_be_added_to_a_connection(board: ExecutorRegistry) -> None:
    """Who has the connection but not its key ends it, and starts nothing."""
    place = board.invitation
    sock, key = connect(place.address, place.port, derived(place.secret, PURPOSE), time.monotonic() + 10.0)
    SealedChannel(sock, key, listened=False).send("here", host="a", machine="a", pid=1, label="task 0", gpus=[])
    board.wait_for(1, timeout_s=10.0)
    SealedChannel(sock, bytes(32), listened=False).send("here", host="b", machine="b", pid=1, label="task 1", gpus=[])
    assert eventually(lambda: board.hosts() == [])
    sock.close()


def test_a_recorded_executor_opens_no_door(board: ExecutorRegistry) -> None:
    """What an executor has said, sent again, is refused."""
    place = board.invitation
    recorder = Recorder((place.address, place.port))
    with executors(board, 1):
        other = start(Invitation(*recorder.address, place.secret), "task 1")
        board.wait_for(2, timeout_s=30.0)
        with visit((place.address, place.port)) as thief:
            thief.sendall(bytes(recorder.said[0]))
            assert cut_off(thief)
        assert len(board.executors()) == 2
    end(other)
    recorder.close()


def test_the_secret_is_in_no_repr(board: ExecutorRegistry) -> None:
    """Engines log their tasks' arguments."""
    assert board.invitation.secret.hex() not in repr(board.invitation)
    assert repr(board.invitation.secret) not in repr(board.invitation)


def test_other_users_cannot_run_scripts(board: ExecutorRegistry) -> None:
    """The launcher's own socket lies in a folder that only its user opens."""
    folder = Path(board.path).parent
    assert folder.stat().st_mode & 0o077 == 0
    board.close()
    assert not folder.exists()
