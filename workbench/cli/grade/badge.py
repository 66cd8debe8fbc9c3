"""``workbench badge``: an Open Badge 3.0 for each learner who has passed the capstone.

openbadgeslib makes it an ``OpenBadgeCredential``, signed as a VC-JWT with Ed25519. Its issuer is a ``did:key``: the
public key is in the name, so that everybody can verify it without a network.
"""

from __future__ import annotations

import argparse
import os
import secrets
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from workbench.cli.grade.learners import named, needed, rows
from workbench.cli.grade.results import print_lines
from workbench.errors import LaunchError
from workbench.launch.as_command import write_named

_CAPSTONE = "13.capstone"


def add(commands: Any) -> None:
    """Add the subcommand."""
    top = commands.add_parser("badge", help="give Open Badges to who passed the capstone, and verify them")
    actions = top.add_subparsers(dest="action", required=True)
    key = actions.add_parser("key", help="make the issuer's key, once; prints the issuer's name, a did:key")
    key.add_argument("file", type=Path, metavar="KEY.pem", help="to be kept: nobody else may read it")
    key.set_defaults(handle=_key)
    give = actions.add_parser("give", help="write a badge for each learner with all points in 13.capstone")
    give.add_argument("marks", type=Path, metavar="MARKS.csv", help="of workbench grade --csv")
    give.add_argument("--key", type=Path, required=True, metavar="KEY.pem", help="of workbench badge key")
    give.add_argument("--issuer", required=True, metavar="NAME", help="of your school or company")
    give.add_argument("--to", type=Path, default=Path("badges"), metavar="FOLDER", help="default: badges")
    text = "columns learner, name and, if you like, email; default: the names of the folders"
    give.add_argument("--names", type=Path, metavar="FILE.csv", help=text)
    give.add_argument("--days", type=int, default=0, metavar="N", help="they are valid; default: for ever")
    give.add_argument("--flagged", action="store_true", help="also where grading said `look:`, and you have looked")
    give.set_defaults(handle=_give)
    verify = actions.add_parser("verify", help="verify badges, without a network")
    verify.add_argument("files", nargs="+", type=Path, metavar="FILE")
    verify.add_argument("--issuer", required=True, metavar="did:key:…", help="who must have given them")
    verify.set_defaults(handle=_verify)


def _key(args: argparse.Namespace) -> int:
    needed("workbench badge", "openbadgeslib")
    from openbadgeslib.keys import KeyEd25519
    from openbadgeslib.ob3 import did_key_from_pem

    pem, public = KeyEd25519().generate_keypair()
    with os.fdopen(os.open(args.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(pem)
    print_lines([str(did_key_from_pem(public))])
    return 0


def did_of(key: Any) -> str:
    """The ``did:key`` of a private Ed25519 key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from openbadgeslib.ob3 import did_key_from_pem

    return str(did_key_from_pem(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)))


def _give(args: argparse.Namespace) -> int:
    needed("workbench badge", "openbadgeslib")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(args.key.read_bytes(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey) or args.key.stat().st_mode & 0o077:
        raise LaunchError(f"{args.key} is no key of workbench badge key, or others can read it: chmod 600 {args.key}")
    people = named(args.names, "name") if args.names else {}
    args.to.mkdir(parents=True, exist_ok=True)
    for learner, why in passed(args.marks, args.flagged).items():
        file = args.to / f"{learner}.jwt"
        person = people.get(learner, {} if args.names else {"name": learner})
        if not (why := why or ("" if person else f"not in {args.names}")) and not file.exists():
            write_named(file, signed(key, args.issuer, person["name"], person.get("email") or "", args.days).encode())
        print_lines([f"{learner}: no badge: {why}" if why else f"{learner}: {file}"])
    print_lines([f"issuer: {did_of(key)}"])
    return 0


def passed(marks: Path, flagged: bool = False) -> dict[str, str]:
    """Learner → why there is no badge; "" for who has passed, or has passed with flags if ``flagged``."""
    found: dict[str, str] = {}
    for row in rows(marks, "exercise", "state", "points", "of", "flags"):
        learner = row["learner"]
        if Path(learner).name != learner:
            raise LaunchError(f"{marks}: {learner!r} is no name of a learner's folder.")
        if row["exercise"] == _CAPSTONE:
            full = row["state"] == "passed" and row["points"] == row["of"]
            look = f"look: {row['flags']}. Then --flagged" if row["flags"] and not flagged else ""
            found[learner] = (
                f"{_CAPSTONE} is there twice" if learner in found else look if full else f"{_CAPSTONE} {row['state']}"
            )
    if not found:
        raise LaunchError(f"{marks} has no {_CAPSTONE}: grade the notebooks of lesson 13 with --csv {marks}.")
    return found


def signed(key: Any, issuer: str, name: str, email: str = "", days: int = 0) -> str:
    """A badge as a VC-JWT, with the e-mail as a salted hash: who knows the address can compare. 0 days: for ever."""
    from openbadgeslib.ob3 import Achievement, IdentityObject, Issuer, OB3Signer, OpenBadgeCredential

    did, now = did_of(key), datetime.now(timezone.utc).replace(microsecond=0)
    achievement = Achievement(
        uuid.uuid5(uuid.NAMESPACE_URL, f"{did}#{_CAPSTONE}").urn,
        "Distributed deep learning: capstone",
        description="Made a training of a neural network run on several ranks, with data parallelism.",
        criteria_narrative=f"All points in the exercise {_CAPSTONE}, judged by `workbench grade`.",
    )
    badge = OpenBadgeCredential(Issuer(did, issuer), None, achievement, issuance_date=now)
    badge.expiration_date = now + timedelta(days=days) if days else None
    badge.identifiers = [IdentityObject(name, "name", hashed=False)]
    if email:
        badge.identifiers.append(IdentityObject.create(email.strip(), secrets.token_hex(16)))
    return str(OB3Signer(key, "EdDSA").sign(badge))


def _verify(args: argparse.Namespace) -> int:
    needed("workbench badge", "openbadgeslib")
    from openbadgeslib.errors import LibOpenBadgesException
    from openbadgeslib.ob3 import OB3Verifier

    if not args.issuer.startswith("did:key:"):  # did:web would ask the network
        raise LaunchError(f"--issuer {args.issuer} is no did:key, as workbench badge key prints it.")
    code = 0
    for file in args.files:
        try:
            badge = OB3Verifier.for_issuer_did(args.issuer).verify(file.read_text(errors="replace").strip())
            who = ", ".join(one.identity_hash for one in badge.identifiers if not one.hashed)
            until = f"until {badge.expiration_date}" if badge.expiration_date else "for ever"
            print_lines([f"✓ {file}: {who}: {badge.achievement.name}, from {badge.issuer.name}, valid {until}"])
        except (LibOpenBadgesException, OSError) as error:
            print_lines([f"✗ {file}: no valid badge of {args.issuer}: {error}"])
            code = 1
    return code
