"""``workbench grade --lti``: points in the gradebook of a platform by somebody else, lti1p3platform, over real HTTP."""

from __future__ import annotations

import http.server
import json
import shutil
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main as cli
from workbench.cli.grade import lti
from workbench.cli.grade.learners import by_learner, learner_of
from workbench.cli.grade.results import ExerciseResult, ExerciseState, NotebookResult
from workbench.errors import LaunchError

pytest.importorskip("lti1p3platform", reason="needs an LTI platform: lti1p3platform (extra dev)")

from cryptography.hazmat.primitives.asymmetric import rsa
from jwcrypto.jwk import JWK
from lti1p3platform.ltiplatform import LTI1P3PlatformConfAbstract
from lti1p3platform.registration import Registration
from lti1p3platform.request import Request
from lti1p3platform.score import UpdateScoreStatus
from lti1p3platform.service_connector import AssignmentsGradesService

ROOT = Path(__file__).resolve().parents[3]
TOOL, PLATFORM = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))


def pem(key: Any) -> str:
    """A private key as text."""
    return JWK.from_pyca(key).export_to_pem(private_key=True, password=None).decode()


class Conf(LTI1P3PlatformConfAbstract):
    def init_platform_config(self, **_: Any) -> None:
        tool, own = (JWK.from_pyca(key) for key in (TOOL, PLATFORM))
        registration = Registration().set_iss("https://platform.example").set_client_id("AbC123")
        registration.set_platform_public_key(own.export_to_pem().decode()).set_platform_private_key(pem(PLATFORM))
        self._registration = registration.set_tool_key_set({"keys": [{**tool.export_public(True), "kid": "tool-1"}]})
        self._jwt_verify_options = {"require": ["exp", "iat", "jti", "aud"], "verify_aud": False}

    def get_registration_by_params(self, **_: Any) -> Registration:
        return self._registration


class Asked(Request):
    def build_metadata(self, request: Any) -> Any:
        return request


class Service(AssignmentsGradesService):
    """The platform's grade service; it knows the users 17, 18 and one by name."""

    book: dict[tuple[str, str], dict[str, Any]]

    def update_score(self, line_item_id: str, score: Any) -> UpdateScoreStatus:
        if score["userId"] not in ("17", "18", "jürgen"):
            return UpdateScoreStatus.NOTAPPLIED
        before = self.book.get((line_item_id, score["userId"]))
        if before and before["timestamp"] >= score["timestamp"]:
            return UpdateScoreStatus.OLD_TIMESTAMP
        self.book[line_item_id, score["userId"]] = score
        return UpdateScoreStatus.SUCCESS

    find_lineitems = find_lineitem = create_lineitem = update_lineitem = delete_lineitem = get_results = None


Service.__abstractmethods__ = frozenset()


@pytest.fixture
def platform() -> Iterator[Any]:
    """The platform, on loopback."""
    conf, book = Conf(), {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            url = urllib.parse.urlsplit(self.path)
            if url.path == "/moved":
                code, found = 302, {}
            elif url.path == "/token":
                try:
                    code, found = 200, conf.get_access_token(dict(urllib.parse.parse_qsl(body)))
                except Exception as error:  # noqa: BLE001 - whatever it raises is a refusal
                    code, found = 400, {"error": f"invalid_client {type(error).__name__}", "sent": body}
            else:
                assert url.query == "type_id=1"
                assert self.headers["Content-Type"] == "application/vnd.ims.lis.v1.score+json"
                asked = {"method": "POST", "headers": self.headers, "json": json.loads(body)}
                service = Service(Asked(asked), conf, "http://127.0.0.1/items")
                service.book = book
                name = url.path.removesuffix("/scores").rpartition("/")[2]
                answer = service.handle_resp(service.handle_update_score, line_item_id=name)
                code, found = answer.code, {"message": answer.message}
            self.send_response(code)
            self.send_header("Location", "/token")
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.book = book
        server.base = f"http://127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()


def described(folder: Path, base: str, items: str = "", **more: str) -> Path:
    """A file that describes it."""
    (folder / "tool.pem").write_text(pem(TOOL))
    (folder / "learners.csv").write_text("\ufefflearner,user_id\nAnna  Lee,17\nju\u0308rgen,jürgen\nmax,99\n", "utf-8")
    keys = {"token_url": f"{base}/token", "client_id": "AbC123", "private_key": "tool.pem", "learners": "learners.csv"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**keys, "key_id": "tool-1", **more}.items() if value]
    items = items or f'03 = "{base}/items/7?type_id=1"\nall = "{base}/items/8?type_id=1"'
    (folder / "lti.toml").write_text("\n".join([*lines, "[line_items]", items]))
    return folder / "lti.toml"


def sheet(learner: str, lesson: str, *states: ExerciseState, missing: int = 0) -> NotebookResult:
    """A graded notebook."""
    marks = {f"{lesson}.{i}": ExerciseResult(f"{lesson}.{i}", 2, state) for i, state in enumerate(states)}
    gone = {f"{lesson}.gone": missing} if missing else {}
    return NotebookResult(f"{learner}/{lesson}.ipynb", marks, missing=gone, learner=learner)


PASSED, FAILED, OPEN = ExerciseState.PASSED, ExerciseState.FAILED, ExerciseState.NOT_JUDGED
CLASS = [
    *(sheet("Anna  Lee", "03", PASSED, FAILED, missing=3), sheet("Anna  Lee", "04", PASSED)),
    *(sheet("jürgen", "03", PASSED, PASSED), sheet("max", "03", PASSED), sheet("no id", "03", PASSED)),
]


def test_points_arrive_and_again_and_who_is_refused_is_named(platform: Any, tmp_path: Path) -> None:
    """Lesson and sum; who has no id, and whom the platform refuses, are told, and the others' points arrive."""
    read = lti.read(str(described(tmp_path, platform.base)))
    for _ in range(2):
        lines = list(read.send(by_learner(CLASS)))
        assert [line.partition(": ")[0] for line in lines[:-1]] == ["max, 03", "max, all"]
        assert "refuses: 403" in lines[0]
        assert lines[2] == "no id has no user_id in learners.csv: add a line"
        marks = {key: (score["scoreGiven"], score["scoreMaximum"]) for key, score in platform.book.items()}
        # Of lesson 03 everybody's notebook shows 2 or 4 points, one says that 3 more are missing.
        assert marks == {("7", "17"): (2, 7), ("8", "17"): (4, 9), ("7", "jürgen"): (4, 4), ("8", "jürgen"): (4, 9)}
    assert platform.book["7", "17"]["comment"] == "03.0 2/2, 03.1 0/2, 03.gone 0/3"


@pytest.mark.process
@pytest.mark.timeout(120)
def test_the_command_grades_and_sends(platform: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real notebooks; the exit code tells of the learner without an id, and the CSV has all marks."""
    for name in ("Anna  Lee", "nobody"):
        (tmp_path / "in" / name).mkdir(parents=True)
        shutil.copy(ROOT / "solutions" / "03_ring_allreduce.ipynb", tmp_path / "in" / name)
    words = ["grade", "--as-root", str(tmp_path / "in"), "--lti", str(described(tmp_path, platform.base))]
    assert cli.main([*words, "--csv", str(tmp_path / "marks.csv")]) == 1
    assert "--lti: nobody has no user_id" in capsys.readouterr().err
    assert {key: (one["scoreGiven"], one["scoreMaximum"]) for key, one in platform.book.items()} == {
        ("7", "17"): (4, 4),
        ("8", "17"): (4, 4),
    }
    assert (tmp_path / "marks.csv").read_text().count(",Anna  Lee\n") == 2


def test_marks_that_are_not_final_are_not_sent(platform: Any, tmp_path: Path) -> None:
    """An exercise twice, or not judged, or a notebook that is none: its lesson is not sent, and others are."""
    twice = [sheet("Anna  Lee", "03", PASSED), sheet("Anna  Lee", "03", FAILED), sheet("Anna  Lee", "04", PASSED)]
    base = platform.base
    read = lti.read(str(described(tmp_path, base, f'03="{base}/i/3?type_id=1"\n04="{base}/i/4?type_id=1"')))
    (line,) = read.send(by_learner([*twice, NotebookResult("jürgen/x.ipynb", problem="broken", learner="jürgen")]))
    assert line.startswith("Anna  Lee, 03: not sent: 03.0 is there twice, in Anna  Lee/03.ipynb, too.")
    assert set(platform.book) == {("4", "17")}
    (line,) = read.send(by_learner([sheet("jürgen", "03", PASSED, OPEN)]))
    assert "03.1 was not judged" in line


def test_no_token_no_scores_and_no_secret_in_the_error(platform: Any, tmp_path: Path) -> None:
    """Another key, an address that moves, one where nobody listens, and one that is silent."""
    path = described(tmp_path, platform.base)
    (tmp_path / "tool.pem").write_text(pem(PLATFORM))
    (line,) = lti.read(str(path)).send(by_learner(CLASS))
    assert line.startswith(f"nothing is sent: {platform.base}/token refuses: 400")
    assert "InvalidSignature" in line
    assert "ey" not in line.replace("key", ""), "the server sends back what it got; that is not shown"
    moved = described(tmp_path, platform.base, token_url=f"{platform.base}/moved")
    assert "refuses: 302" in next(lti.read(str(moved)).send(by_learner(CLASS)))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        base = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(lti, "_SILENCE_S", 0.2)
            (line,) = lti.read(str(described(tmp_path, base))).send(by_learner(CLASS))
        assert "does not answer: timed out" in line
    assert "does not answer" in next(lti.read(str(described(tmp_path, base))).send(by_learner(CLASS)))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"token_url": "http://platform.example/token"}, "is no https address"),
        ({"token_url": ""}, "token_url = None. It needs"),
        ({"clientid": "x"}, "clientid = 'x'"),
        ({"private_key": "learners.csv"}, "openssl genrsa"),
        ({"learners": "tool.pem"}, "needed: learner, user_id"),
    ],
)
def test_a_wrong_file_is_said_before_the_work(changed: dict[str, str], text: str, tmp_path: Path) -> None:
    """With what is wrong in it."""
    path = described(tmp_path, "http://127.0.0.1:1", **changed)
    with pytest.raises(LaunchError, match=text):
        lti.read(str(path))


def test_a_learner_is_a_folder_and_once_in_the_file(tmp_path: Path) -> None:
    """Below the folder that was named, else the one of the notebook; and whose points are they, where one is twice?"""
    assert learner_of("s/Anna  Lee/exercises/03.ipynb", ["s"]) == "Anna  Lee"
    assert learner_of("s/ju\u0308rgen/03.ipynb", ["s/ju\u0308rgen/03.ipynb"]) == "jürgen"
    path = described(tmp_path, "http://127.0.0.1:1")
    (tmp_path / "learners.csv").write_text("learner,user_id\nkim,1\nkim,2\n")
    with pytest.raises(LaunchError, match="'kim' is there twice"):
        lti.read(str(path))
