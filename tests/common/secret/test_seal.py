"""Only those who know the secret can make a message, and only in their own direction."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from workbench.common.secret.seal import Seal

# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SECRET = st.binary(min_size=16, max_size=32)
RANK = st.integers(0, 2**32 - 1)
NUMBER = st.integers(0, 2**64 - 1)
BODY = st.binary(max_size=40)


@PROPERTY
@given(SECRET, RANK, NUMBER, BODY)
def test_a_sealed_message_opens(secret: bytes, rank: int, number: int, body: bytes) -> None:
    """The other end, which knows the secret, reads rank, number and body."""
    assert Seal(secret, b"up").open(Seal(secret, b"up").close(rank, number, body)) == (rank, number, body)


@PROPERTY
@given(RANK, NUMBER, BODY)
def test_any_flipped_bit_is_noticed(rank: int, number: int, body: bytes) -> None:
    """Whichever single bit of a message is changed, it does not open."""
    seal = Seal(b"the secret of this job", b"up")
    message = seal.close(rank, number, body)
    for bit in range(8 * len(message)):
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        assert seal.open(bytes(changed)) is None


@PROPERTY
@given(RANK, NUMBER, BODY)
def test_a_shortened_or_lengthened_message_does_not_open(rank: int, number: int, body: bytes) -> None:
    """No prefix of a message opens, nor the message with something behind it."""
    seal = Seal(b"the secret of this job", b"up")
    message = seal.close(rank, number, body)
    assert all(seal.open(message[:length]) is None for length in range(len(message)))
    assert seal.open(message + b"\0") is None


@PROPERTY
@given(SECRET, SECRET, BODY)
def test_another_jobs_message_does_not_open(mine: bytes, theirs: bytes, body: bytes) -> None:
    """A message under another secret does not open."""
    # The keyed hash pads its key with zeros, so only these make another key.
    assume(mine.rstrip(b"\0") != theirs.rstrip(b"\0"))
    assert Seal(mine, b"up").open(Seal(theirs, b"up").close(0, 1, body)) is None


@PROPERTY
@given(SECRET, BODY)
def test_a_message_cannot_be_turned_round(secret: bytes, body: bytes) -> None:
    """What rank 0 said to the ranks is not taken for what a rank said to rank 0, nor the other way round."""
    up, down = Seal(secret, b"up"), Seal(secret, b"down")
    assert up.open(down.close(0, 1, body)) is None
    assert down.open(up.close(0, 1, body)) is None


@PROPERTY
@given(st.binary(max_size=80))
def test_arbitrary_bytes_do_not_open(data: bytes) -> None:
    """Noise of any length is refused without an exception."""
    assert Seal(b"the secret of this job", b"up").open(data) is None
