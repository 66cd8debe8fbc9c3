"""``workbench badge``: what it signs is verified by cryptography alone, and what was changed is refused."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main as cli

pytest.importorskip("openbadgeslib", reason="needs openbadgeslib (extra classroom)")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from workbench.cli.grade import badge

COLUMNS = "file,exercise,state,points,of,seconds,remark,flags,confined,learner\n"
ROWS = """\
a,13.capstone,passed,8,8,1.0,,,yes,Jürgen W
a,13.capstone,failed,0,8,1.0,,,yes,max
a,03.a,passed,1,1,1.0,,,yes,other
a,13.capstone,passed,8,8,1.0,,,yes,twice
b,13.capstone,passed,8,8,1.0,,,yes,twice
a,13.capstone,passed,8,8,1.0,,uses gc,yes,flagged
"""


def claims(text: str, did: str) -> dict[str, Any]:
    """Of a badge whose signature holds; by cryptography, and the digits of a did:key as its specification has them."""
    head, body, signature = text.split(".")
    number = 0
    for letter in did.removeprefix("did:key:z"):
        number = number * 58 + "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz".index(letter)
    key = number.to_bytes(34, "big")
    assert key[:2] == b"\xed\x01"
    decoded = [base64.urlsafe_b64decode(part + "==") for part in (head, body, signature)]
    Ed25519PublicKey.from_public_bytes(key[2:]).verify(decoded[2], f"{head}.{body}".encode())
    return {**json.loads(decoded[1]), "head": json.loads(decoded[0])}


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """In a folder with marks and an issuer's key; its did:key."""
    monkeypatch.chdir(tmp_path)
    Path("marks.csv").write_text(COLUMNS + ROWS, "utf-8")
    assert cli.main(["badge", "key", "k.pem"]) == 0
    assert Path("k.pem").stat().st_mode & 0o777 == 0o600
    return capsys.readouterr().out.strip()


def test_a_badge_for_who_has_passed(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One valid OpenBadgeCredential; the others are named with why. Again, and nothing is written."""
    Path("names.csv").write_text("learner,name,email\nJu\u0308rgen W,Jürgen Weiß,j@w.example\ntwice,T,\n", "utf-8")
    give = ["badge", "give", "marks.csv", "--key", "k.pem", "--issuer", "Uni X", "--names", "names.csv"]
    assert cli.main(give) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Jürgen W: badges/Jürgen W.jwt", "max: no badge: 13.capstone failed"]
    assert lines[2:] == [
        *("twice: no badge: 13.capstone is there twice", "flagged: no badge: look: uses gc. Then --flagged"),
        f"issuer: {course}",
    ]
    text = Path("badges", "Jürgen W.jwt").read_text()
    found = claims(text, course)
    assert found["@context"][:2] == [
        *("https://www.w3.org/ns/credentials/v2", "https://purl.imsglobal.org/spec/ob/v3p0/context-3.0.3.json"),
    ]
    assert found["type"] == ["VerifiableCredential", "OpenBadgeCredential"]
    assert found["iss"] == found["issuer"]["id"] == course
    assert found["head"]["alg"] == "EdDSA"
    assert "d" not in found["head"]["jwk"]
    name, mail = found["credentialSubject"]["identifier"]
    assert name["identityHash"] == "Jürgen Weiß"
    assert mail["identityHash"] == "sha256$" + hashlib.sha256(b"j@w.example" + mail["salt"].encode()).hexdigest()
    assert "j@w" not in json.dumps(found)
    assert cli.main(give) == 0
    assert Path("badges", "Jürgen W.jwt").read_text() == text
    assert cli.main(["badge", "verify", "badges/Jürgen W.jwt", "--issuer", course]) == 0
    assert "✓ badges/Jürgen W.jwt: Jürgen Weiß: Distributed deep" in capsys.readouterr().out


def test_what_is_not_genuine_is_refused(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed byte, another key, one that has expired, another file, an issuer that asks the network."""
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    did, text = badge.did_of(key), badge.signed(key, "Uni X", "Kim")
    head, body, signature = text.split(".")
    body = base64.urlsafe_b64encode(base64.urlsafe_b64decode(body + "==").replace(b"Kim", b"Tim")).decode().rstrip("=")
    wrong = {
        "changed": (f"{head}.{body}.{signature}", "Invalid signature"),
        "other": (badge.signed(other, "Uni X", "Kim"), "Invalid signature"),
        "old": (badge.signed(key, "Uni X", "Kim", days=-1), "expired"),
        "file": ("learner,name", "Invalid JWT"),
    }
    for name, (content, _) in wrong.items():
        Path(name).write_text(content)
    assert cli.main(["badge", "verify", *wrong, "gone", "--issuer", did]) == 1
    lines = capsys.readouterr().out.splitlines()
    for line, (name, why) in zip(
        lines, [*((name, why) for name, (_, why) in wrong.items()), ("gone", "No such")], strict=True
    ):
        assert line.startswith(f"✗ {name}: no valid badge of {did}: ")
        assert why in line
    assert cli.main(["badge", "verify", "old", "--issuer", "did:web:example.org"]) == 1


def test_bad_files_are_said(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Marks of another form, without a capstone, a name that leaves the folder, a key that others can read."""
    give = ["badge", "give", "marks.csv", "--key", "k.pem", "--issuer", "Uni X"]
    for text, said in [
        ("a,b\n1,2\n", "no learner; needed: learner, exercise"),
        (COLUMNS, "no learner"),
        (f"{COLUMNS}a,03.a,passed,1,1,1.0,,,yes,kim\n", "has no 13.capstone"),
        (f"{COLUMNS}a,13.capstone,passed,8,8,1.0,,,yes,../kim\n", "is no name of a learner's folder"),
    ]:
        Path("marks.csv").write_text(text)
        assert cli.main(give) == 1
        assert said in capsys.readouterr().err
    Path("k.pem").chmod(0o644)
    assert cli.main(give) == 1
    assert "chmod 600" in capsys.readouterr().err
    assert cli.main(["badge", "key", "k.pem"]) == 1
    assert "File exists" in capsys.readouterr().err
