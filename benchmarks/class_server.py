"""How soon learners have a verdict: ``python benchmarks/class_server.py http://HOST:PORT/ PASSWORD NAME …``.

The class runs already (``workbench class up``). All sign in within ten seconds, as browsers would ask for it: the page,
JupyterLab, a kernel; then the first exercise of lesson 02 is solved and checked. Printed are the seconds from signing
in to the verdict.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import uuid
from statistics import median
from typing import Any

import requests
import websocket

EXERCISE = """
from workbench.course.exercise import check, exercise
from workbench.course.tasks import names, task
import numpy as np
name = next(each for each in names() if each.startswith("02."))
exec(task(name).cell(True))
check(name)
"""
_ALL_BEGIN_S = 10.0


class Learner:
    """A browser's requests: signs in, starts the server and a kernel."""

    def __init__(self, address: str, name: str) -> None:
        self.base, self.name, self.session = address, name, requests.Session()
        self.socket: Any = None

    def close(self) -> None:
        self.session.close()
        if self.socket is not None:
            self.socket.close()

    def sign_in(self, password: str) -> int:
        self.session.get(f"{self.base}hub/login")
        fields = {"username": self.name, "password": password, "_xsrf": self.session.cookies.get("_xsrf", path="/hub/")}
        return self.session.post(f"{self.base}hub/login?next=", data=fields).status_code

    def lab(self, longest_s: float = 90.0) -> None:
        until, page = time.monotonic() + longest_s, f"{self.base}user/{self.name}/lab"
        while time.monotonic() < until:
            answer = self.session.get(page)
            if answer.ok and answer.url == page:
                return
            time.sleep(1.0)  # a page asks no more often
        raise AssertionError(f"no JupyterLab for {self.name}: {answer.status_code} {answer.url}")

    def kernel(self) -> None:
        user = f"/user/{self.name}/"
        token = next(each.value for each in self.session.cookies if each.name == "_xsrf" and each.path == user)
        made = self.session.post(f"{self.base[:-1]}{user}api/kernels", headers={"X-XSRFToken": str(token)}, json={})
        self.channels = f"{self.base[:-1]}{user}api/kernels/{made.json()['id']}/channels".replace("http", "ws", 1)
        self.connect()

    def connect(self) -> None:
        """To the kernel, as a page does, also again."""
        mine = [each for each in self.session.cookies if each.path in ("/", f"/user/{self.name}/")]
        cookies = "; ".join(f"{each.name}={each.value}" for each in mine)
        self.socket = websocket.create_connection(self.channels, cookie=cookies, timeout=60)

    def run(self, code: str) -> str:
        """What a cell prints, or its error."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "session": "",
            "username": "",
            "version": "5.3",
        }
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": {"code": code}, "channel": "shell"}
        self.socket.send(json.dumps(message))
        told = ""
        while True:
            answer = json.loads(self.socket.recv())
            content = answer["content"]
            if answer["msg_type"] == "status" and content["execution_state"] in ("restarting", "dead"):
                return "the kernel has died"
            if answer["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            told += content.get("text", "") + (f"{content['ename']}: " if answer["msg_type"] == "error" else "")
            if answer["msg_type"] == "status" and content["execution_state"] == "idle":
                return str(told).strip()


def first_verdict(learner: Learner, password: str, wait_s: float, found: dict[str, float | str]) -> None:
    """Seconds until the exercise is checked, or what went wrong."""
    time.sleep(wait_s)
    begun = time.monotonic()
    try:
        learner.sign_in(password)
        learner.lab(300.0)
        learner.kernel()
        told = learner.run(EXERCISE)
        found[learner.name] = time.monotonic() - begun if "✓ right" in told else told[:200]
    except Exception as error:  # noqa: BLE001 - it is that learner's story
        found[learner.name] = f"{type(error).__name__}: {error}"[:200]
    finally:
        learner.close()


def main() -> None:
    """Print seconds, in order, and what went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("address")
    parser.add_argument("password")
    parser.add_argument("names", nargs="+")
    words = parser.parse_args()
    found: dict[str, float | str] = {}
    begin_s = _ALL_BEGIN_S / len(words.names)
    threads = [
        threading.Thread(target=first_verdict, args=(Learner(words.address, name), words.password, i * begin_s, found))
        for i, name in enumerate(words.names)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = sorted(each for each in found.values() if isinstance(each, float))
    print(f"{len(took)} of {len(found)} have a verdict: {', '.join(f'{each:.0f}' for each in took)} s")
    if took:
        print(f"median {median(took):.0f} s, the last {took[-1]:.0f} s")
    for name, each in sorted(found.items()):
        if isinstance(each, str):
            print(f"{name}: {each}")


if __name__ == "__main__":
    main()
