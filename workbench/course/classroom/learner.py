"""A learner without a screen: what a browser asks JupyterHub and JupyterLab for, in order."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from typing import Any

from workbench.errors import LaunchError

LAB_S, CELL_S = 300.0, 180.0
"""So long a learner waits for JupyterLab, and for a cell: then it hangs."""


class Learner:
    """Signs in, opens JupyterLab, begins kernels and runs cells.

    Args:
        address: of the class, such as ``http://127.0.0.1:8000/``.
        name: to sign in with.

    Attributes:
        error: of the last cell, with its name; "" if there was none.
    """

    def __init__(self, address: str, name: str) -> None:
        import requests

        self.base, self.name, self.session = address, name, requests.Session()
        self.session.trust_env = False  # no proxy
        self.user = f"{address[:-1]}/user/{name}/"
        self.kernel_id = self.error = ""
        self.socket: Any = None

    def close(self) -> None:
        self.session.close()
        self._hang_up()

    def sign_in(self, password: str) -> int:
        """The status of the answer: 200, or 403 for a name or password that is wrong."""
        self.session.get(f"{self.base}hub/login", timeout=LAB_S)
        fields = {"username": self.name, "password": password, "_xsrf": self.session.cookies.get("_xsrf", path="/hub/")}
        return self.session.post(f"{self.base}hub/login?next=", data=fields, timeout=LAB_S).status_code

    def lab(self, longest_s: float = LAB_S) -> None:
        """Wait until the learner's JupyterLab is there.

        Raises:
            LaunchError: it is not.
        """
        until, page = time.monotonic() + longest_s, f"{self.user}lab"
        while True:
            answer = self.session.get(page, timeout=longest_s)
            if answer.ok and answer.url == page:
                return
            if time.monotonic() > until:
                raise LaunchError(f"no JupyterLab after {longest_s:.0f} s: {answer.status_code} {answer.url}")
            time.sleep(1.0)  # a page asks no more often

    def kernel(self, folder: str = "") -> None:
        """Begin a kernel whose working directory is a folder of the learner's, in place of the one before."""
        self.end_kernel()
        made = self._ask("post", "api/kernels", {"path": f"{folder}/x.ipynb" if folder else ""})
        self.kernel_id = made.json()["id"]
        self.connect()

    def end_kernel(self) -> None:
        self._hang_up()
        if self.kernel_id:
            self._ask("delete", f"api/kernels/{self.kernel_id}")
        self.kernel_id = ""

    def interrupt(self) -> None:
        self._ask("post", f"api/kernels/{self.kernel_id}/interrupt", {})

    def file(self, path: str) -> str:
        """The text of one of the learner's files; "" if it is not there."""
        answer = self._ask("get", f"api/contents/{path}?format=text&type=file")
        return str(answer.json()["content"]) if answer.ok else ""

    def connect(self) -> None:
        """To the kernel, as a page does, also again."""
        import websocket

        mine = [each for each in self.session.cookies if each.path in ("/", f"/user/{self.name}/")]
        cookies = "; ".join(f"{each.name}={each.value}" for each in mine)
        channels = f"{self.user}api/kernels/{self.kernel_id}/channels".replace("http", "ws", 1)
        self.socket = websocket.create_connection(channels, cookie=cookies, timeout=60)

    def run(self, code: str, longest_s: float = CELL_S) -> str:
        """What a cell prints; where it fails, its error with the name before it.

        Raises:
            TimeoutError: it has not ended.
        """
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.3"}
        header |= {"session": "", "username": ""}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        self.socket.send(json.dumps(message))
        told, self.error, until = "", "", time.monotonic() + longest_s
        while True:
            answer = self._receive(until)
            found, kind = answer["content"], answer["msg_type"]
            if kind == "status" and found["execution_state"] in ("restarting", "dead"):
                self.error = "the kernel has died"
                return self.error
            if answer["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            if kind == "error":
                self.error = f"{found['ename']}: {found['evalue']}"
            told += self.error if kind == "error" else str(found.get("text", ""))
            if kind == "status" and found["execution_state"] == "idle":
                return told.strip()

    def _receive(self, until: float) -> Any:
        import websocket

        try:
            self.socket.settimeout(max(0.1, until - time.monotonic()))
            return json.loads(self.socket.recv())
        except websocket.WebSocketTimeoutException:
            raise TimeoutError("the cell has not ended") from None

    def _hang_up(self) -> None:
        if self.socket is not None:
            with suppress(OSError):
                self.socket.close()
        self.socket = None

    def _ask(self, method: str, path: str, data: Any = None) -> Any:
        mine = f"/user/{self.name}/"
        token = next((each.value for each in self.session.cookies if each.name == "_xsrf" and each.path == mine), "")
        headers = {"X-XSRFToken": str(token)}
        return self.session.request(method, self.user + path, headers=headers, json=data, timeout=LAB_S)
