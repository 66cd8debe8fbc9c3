"""Points go to the gradebook of a learning platform by LTI 1.3: Assignment and Grade Services 2.0.

The tool signs who it is (RS256), gets a token for that, and posts a score for each learner and line item. A score has
the time of the run: a platform keeps the newest, so sending again does no harm. docs/how-to/grade.md shows the file.
"""

from __future__ import annotations

import http.client
import json
import re
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from workbench.cli.grade.learners import Learner, named, needed
from workbench.cli.grade.results import clean
from workbench.errors import LaunchError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FORM = {
    "grant_type": "client_credentials",
    "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    "scope": "https://purl.imsglobal.org/spec/lti-ags/scope/score",
}
_NEEDED = {"token_url": str, "client_id": str, "private_key": str, "learners": str, "line_items": dict}
_KNOWN = {**_NEEDED, "key_id": str, "audience": str}
_SAFE = re.compile(r"https://[^/@\s]+/|http://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?/")
_SILENCE_S = 20.0
_MOST_BYTES = 1 << 16


class _NoRedirect(HTTPRedirectHandler):
    """The token is for this address, and for no other one."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Platform:
    """A platform: what its file says, the tool's private RSA key, and learner → the platform's user."""

    said: dict[str, Any]
    key: bytes
    users: dict[str, str]

    def send(self, learners: Sequence[Learner]) -> Iterator[str]:
        """Send all scores; yields a line for each that did not arrive."""
        whole = sum({name: of for one in learners for name, (_, of) in one.marks.items()}.values())
        try:
            token = self._token()
        except LaunchError as error:
            yield f"nothing is sent: {error}"
            return
        for learner in learners:
            if learner.name not in self.users:
                yield f"{learner.name} has no user_id in {self.said['learners']}: add a line"
                continue
            for lesson, url in self.said["line_items"].items():
                marks = learner.of(lesson)
                most = whole if lesson == "all" else sum(of for _, of in marks.values())
                try:
                    if why := learner.open.get(lesson):
                        raise LaunchError(f"{why}. Mend it, and grade again.")
                    if most:
                        _post_score(url, token, self.users[learner.name], marks, most)
                except LaunchError as error:
                    yield f"{learner.name}, {lesson}: not sent: {error}"

    def _token(self) -> str:
        import jwt

        now, tool, url = int(time.time()), self.said["client_id"], self.said["token_url"]
        claims = {"iss": tool, "sub": tool, "aud": self.said.get("audience") or url, "jti": secrets.token_urlsafe()}
        headers = {"kid": self.said["key_id"]} if self.said.get("key_id") else None
        signed = jwt.encode({**claims, "iat": now, "exp": now + 300}, self.key, "RS256", headers)
        body = urlencode({**_FORM, "client_assertion": signed}).encode()
        answer = _post(url, body, {"Content-Type": "application/x-www-form-urlencoded"}, signed)
        try:
            return str(json.loads(answer)["access_token"])
        except (ValueError, TypeError, KeyError):
            raise LaunchError(f"{url} answers without an access_token. Is it the token address?") from None


def _post_score(url: str, token: str, user: str, marks: dict[str, tuple[int, int]], most: int) -> None:
    score = {
        "userId": user,
        "scoreGiven": sum(points for points, _ in marks.values()),
        "scoreMaximum": most,
        "comment": ", ".join(f"{name} {points}/{of}" for name, (points, of) in marks.items()),
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "activityProgress": "Completed",
        "gradingProgress": "FullyGraded",
    }
    kind = {"Content-Type": "application/vnd.ims.lis.v1.score+json", "Authorization": f"Bearer {token}"}
    parts = urlsplit(url)
    _post(parts._replace(path=f"{parts.path}/scores").geturl(), json.dumps(score).encode(), kind, token)


def _post(url: str, body: bytes, headers: dict[str, str], secret: str) -> bytes:
    proxies = [ProxyHandler({})] if url.startswith("http:") else []  # on loopback there is none
    try:
        asked = Request(url, body, headers)
        with build_opener(_NoRedirect, *proxies).open(asked, timeout=_SILENCE_S) as answer:
            return bytes(answer.read(_MOST_BYTES))
    except HTTPError as error:
        with error:  # some platforms repeat what they were sent
            text = error.read(_MOST_BYTES).decode(errors="replace").replace(secret, "…")
        raise LaunchError(f"{url} refuses: {error.code} {clean(' '.join(text.split())[:200])}") from None
    except (http.client.HTTPException, OSError) as error:
        why = getattr(error, "reason", error)
        raise LaunchError(f"{url} does not answer: {why}. Is the network up? Grading again sends again.") from None


def read(path: str) -> Platform:
    """The platform of a file; a LaunchError if something is wrong in it, or in a file that it names."""
    needed("workbench grade --lti")
    import jwt

    file = Path(path)
    try:
        said = tomllib.loads(file.read_bytes().decode())
    except ValueError as error:
        raise LaunchError(f"{path} is not TOML: {error}.") from None
    for key in {**_NEEDED, **said}:
        if not isinstance(said.get(key), _KNOWN.get(key, ())):
            raise LaunchError(
                f"{path}: {key} = {said.get(key)!r}. It needs {', '.join(_NEEDED)}, and takes {', '.join(_KNOWN)}."
            )
    if strange := [each for each in said["line_items"] if each != "all" and not re.fullmatch(r"\d\d", each)]:
        raise LaunchError(f"{path}: line_items has {strange[0]!r}: name a lesson with two digits, such as 03, or all.")
    for url in (said["token_url"], *said["line_items"].values()):
        if not _SAFE.match(str(url)):
            raise LaunchError(f"{path}: {url!r} is no https address (http is for this machine alone).")
    users = {name: line["user_id"] for name, line in named(file.parent / said["learners"], "user_id").items()}
    pem = (file.parent / said["private_key"]).read_bytes()
    try:
        jwt.encode({}, pem, "RS256")
    except (jwt.PyJWTError, ValueError, TypeError):  # TypeError: it has a password
        raise LaunchError(
            f"{said['private_key']} is no RSA key in PEM without a password: openssl genrsa 2048"
        ) from None
    return Platform(said, pem, users)
