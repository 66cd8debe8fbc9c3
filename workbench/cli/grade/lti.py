"""Points go to the gradebook of a learning platform by LTI 1.3: Assignment and Grade Services 2.0.

::

    token_url = "https://moodle.example.org/mod/lti/token.php"
    client_id = "AbC123"
    private_key = "tool.pem"      # the platform has the public one; paths begin at this file
    learners = "learners.csv"     # columns learner and user_id
    [line_items]                  # or: all = "…", the points of all lessons of a run
    03 = "https://moodle.example.org/mod/lti/services.php/2/lineitems/7/lineitem?type_id=1"

The tool signs who it is (RS256), gets a token for that, and posts a score for each learner and line item. A score has
the time of the run: a platform keeps the newest, so that sending again does no harm.
"""

from __future__ import annotations

import csv
import http.client
import io
import json
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from workbench.cli.grade.learners import Learner, plain
from workbench.cli.grade.results import clean
from workbench.common.extras import cure, need
from workbench.errors import LaunchError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SCOPE = "https://purl.imsglobal.org/spec/lti-ags/scope/score"
_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_NEEDED = ("token_url", "client_id", "private_key", "learners", "line_items")
_OPTIONAL = ("key_id", "audience")
_SILENCE_S = 20.0
_MOST_BYTES = 1 << 16


class _NoRedirect(HTTPRedirectHandler):
    """The token is for this address, and for no other one."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Platform:
    """A platform, as its file describes it.

    Args:
        token_url, client_id, audience, key_id: of the registration.
        key: the tool's private key, PEM.
        users: learner → the platform's number or name of the user.
        line_items: lesson, or ``all`` → address.
    """

    token_url: str
    client_id: str
    audience: str
    key_id: str
    key: bytes
    users: dict[str, str]
    line_items: dict[str, str]

    def send(self, learners: Sequence[Learner]) -> Iterator[str]:
        """Send all scores; yields a line for each that did not arrive.

        Args:
            learners: with their marks.
        """
        try:
            token = self._token()
        except LaunchError as error:
            yield f"nothing is sent: {error}"
            return
        most = {name: of for learner in learners for name, (_, of) in learner.marks.items()}
        for learner in learners:
            user = self.users.get(learner.name)
            if user is None:
                yield f"{learner.name} has no user_id in the file of learners: add a line"
                continue
            for lesson, url in self.line_items.items():
                points, of = learner.total(lesson)
                if not of:
                    continue
                of = sum(most.values()) if lesson == "all" else of
                try:
                    if why := learner.open.get(lesson):
                        raise LaunchError(f"{why}. Mend it, and grade again.")
                    self._score(url, token, _score(user, learner, lesson, points, of))
                except LaunchError as error:
                    yield f"{learner.name}, {lesson}: not sent: {error}"

    def _token(self) -> str:
        import jwt

        now = int(time.time())
        claims = {"iss": self.client_id, "sub": self.client_id, "aud": self.audience or self.token_url}
        claims |= {"iat": now, "exp": now + 300, "jti": secrets.token_urlsafe()}  # type: ignore[dict-item]
        headers = {"kid": self.key_id} if self.key_id else None
        signed = jwt.encode(claims, self.key, "RS256", headers)
        form = {"grant_type": "client_credentials", "client_assertion_type": _ASSERTION, "scope": _SCOPE}
        body = urlencode({**form, "client_assertion": signed}).encode()
        answer = _post(self.token_url, body, {"Content-Type": "application/x-www-form-urlencoded"}, signed)
        try:
            return str(json.loads(answer)["access_token"])
        except (ValueError, TypeError, KeyError):
            raise LaunchError(f"{self.token_url} answers without an access_token. Is it the token address?") from None

    @staticmethod
    def _score(url: str, token: str, score: dict[str, Any]) -> None:
        parts = urlsplit(url)
        kind = {"Content-Type": "application/vnd.ims.lis.v1.score+json", "Authorization": f"Bearer {token}"}
        _post(urlunsplit(parts._replace(path=f"{parts.path}/scores")), json.dumps(score).encode(), kind, token)


def _score(user: str, learner: Learner, lesson: str, points: int, of: int) -> dict[str, Any]:
    rows = {name: mark for name, mark in learner.marks.items() if lesson in (name.partition(".")[0], "all")}
    return {
        "userId": user,
        "scoreGiven": points,
        "scoreMaximum": of,
        "comment": ", ".join(f"{name} {given}/{most}" for name, (given, most) in rows.items()),
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "activityProgress": "Completed",
        "gradingProgress": "FullyGraded",
    }


def _post(url: str, body: bytes, headers: dict[str, str], secret: str) -> bytes:
    """The platform's answer.

    Raises:
        LaunchError: it refuses, or does not answer.
    """
    proxies = [ProxyHandler({})] if urlsplit(url).scheme == "http" else []  # on loopback there is none
    request = Request(url, body, {"Accept": "*/*", **headers})
    try:
        with build_opener(_NoRedirect, *proxies).open(request, timeout=_SILENCE_S) as answer:
            return bytes(answer.read(_MOST_BYTES))
    except HTTPError as error:
        with error:
            text = error.read(_MOST_BYTES).decode(errors="replace").replace(secret, "…")
        why = clean(" ".join(text.split())[:200])
        raise LaunchError(f"{url} refuses: {error.code} {error.reason} {why}".rstrip()) from None
    except (URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise LaunchError(f"{url} does not answer: {reason}. Is the network up? Grading again sends again.") from None


def read(path: str) -> Platform:
    """The platform of a file.

    Raises:
        LaunchError: something is wrong in it, or with a file that it names.
    """
    try:
        need("workbench grade --lti", "jwt", "cryptography", install=cure("classroom"))
    except ModuleNotFoundError as error:
        raise LaunchError(str(error)) from None
    file = Path(path)
    try:
        found = tomllib.loads(_bytes(file).decode())
    except ValueError as error:
        raise LaunchError(f"{path} is not TOML: {error}.") from None
    for key in _NEEDED:
        if key not in found:
            raise LaunchError(f"{path}: {key} is missing. It needs {', '.join(_NEEDED)}.")
    for key, value in found.items():
        if key not in _NEEDED + _OPTIONAL:
            raise LaunchError(f"{path}: {key} is not a known key. The keys are: {', '.join(_NEEDED + _OPTIONAL)}.")
        if not (isinstance(value, dict) if key == "line_items" else isinstance(value, str)):
            raise LaunchError(f"{path}: {key} = {value!r} must be {'a table' if key == 'line_items' else 'a text'}.")
    for url in (found["token_url"], *found["line_items"].values()):
        _check(path, url)
    names = {name: found.get(name, "") for name in ("token_url", "client_id", *_OPTIONAL)}
    pem, users = _key(file.parent / found["private_key"]), _users(file.parent / found["learners"])
    return Platform(**names, key=pem, users=users, line_items=found["line_items"])


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}.") from None


def _check(path: str, url: object) -> None:
    try:
        parts = urlsplit(str(url))
        host = parts.hostname or ""
        here = host == "localhost" or ((host[:1].isdigit() or ":" in host) and ip_address(host).is_loopback)
    except ValueError:
        parts, host, here = urlsplit(""), "", False
    if not host or (parts.scheme != "https" and not (parts.scheme == "http" and here)):
        raise LaunchError(f"{path}: {url!r} is no https address (http is for this machine alone).")


def _key(path: Path) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _bytes(path)
    try:
        fits = isinstance(load_pem_private_key(key, None), RSAPrivateKey)
    except (ValueError, TypeError):  # TypeError: it has a password
        fits = False
    if not fits:
        raise LaunchError(f"{path} is not a private RSA key in PEM without a password: openssl genrsa -out {path} 2048")
    return key


def _users(path: Path) -> dict[str, str]:
    def wrong(why: str) -> NoReturn:
        raise LaunchError(f"{path}: {why}. It has a line learner,user_id, and then a line for each learner.")

    users: dict[str, str] = {}
    try:
        lines = csv.DictReader(io.StringIO(_bytes(path).decode("utf-8-sig")))
    except UnicodeDecodeError:
        wrong("it is not UTF-8")
    for line in lines:
        name, user = plain(line.get("learner") or ""), (line.get("user_id") or "").strip()
        if not name or not user:
            wrong(f"line {lines.line_num} has no learner or no user_id")
        if name in users:
            wrong(f"{name} is in it twice")
        users[name] = user
    return users or wrong("it names nobody")
