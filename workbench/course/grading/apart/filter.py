"""System calls that a process with learners' code may not make: what Landlock does not bound, kept by seccomp.

A filter is a program for the kernel's BPF machine, which sees a call's number and its arguments, but not what these
point to. So it cannot tell one path from another: such calls are allowed or not as a whole. Written for x86-64 and
64-bit ARM; elsewhere there is no filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping

_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_NEW_PRIVS, _SECCOMP, _MODE_FILTER = 38, 22, 2  # of prctl(2)
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in what the program sees
_ARCHES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_FIRST_X32 = 0x40000000
_UNIX = 1
_NEW_NAMESPACES = 0x7E020080
_SET_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: another way to send a signal

# Calls by what becomes of them. Name: its number on x86-64 and on ARM; None where there is no such call.
Numbers = dict[str, tuple[int | None, int | None]]
_REFUSED: Numbers = {
    # What outlives its process, so one submission could leave it for the next.
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191),
    "semtimedop": (220, 192), "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219),
    # Other processes.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # The kernel, namespaces and mounts; a socket of a service of this user, which would do what the caller may not.
    "perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282), "unshare": (272, 97),
    "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "fsopen": (430, 430), "open_tree": (428, 428), "move_mount": (429, 429), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "sethostname": (170, 161),
    "setdomainname": (171, 162), "quotactl": (179, 60), "connect": (42, 203),
}  # fmt: skip
# Told not to be there, so that libraries do without: they go past this filter, or past the limits.
_ABSENT: Numbers = {
    "clone3": (435, 435), "io_uring_setup": (425, 425), "memfd_create": (319, 279), "memfd_secret": (447, 447),
}  # fmt: skip
# A file's mode, owner and times. Landlock lets the owner change those of files that he may only read.
_WITHOUT_EFFECT: Numbers = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
}  # fmt: skip
# Looked at more closely below.
_CLOSER: Numbers = {
    "socket": (41, 198), "sendto": (44, 206), "clone": (56, 220), "prlimit64": (302, 261), "fcntl": (72, 25),
    "sched_setaffinity": (203, 122), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "landlock_create_ruleset": (444, 444),
}  # fmt: skip
_SIGNALS: Numbers = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
}  # fmt: skip
_NUMBERS = _REFUSED | _ABSENT | _WITHOUT_EFFECT | _CLOSER | _SIGNALS

Instruction = tuple[int, int, int, int]


def refuse(answers: Mapping[str, int], signals: bool = True) -> bool:
    """Have some system calls fail from now on, in this process and in all that it starts. False if that cannot be.

    Args:
        answers: call → the error number; 0 lets it seem to succeed.
        signals: may this process signal others?
    """
    arch, column = _ARCHES.get(platform.machine(), (0, 0))
    if sys.platform != "linux" or not arch or sys.maxsize < 1 << 32:
        return False
    numbers = {name: number for name, both in _NUMBERS.items() if (number := both[column]) is not None}
    program = [
        *((_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), _answer(errno.EPERM), (_LOAD, 0, 0, _NUMBER)),
        *((0x35, 0, 1, _FIRST_X32), _answer(errno.ENOSYS)),
        *_refusals((numbers[name], error) for name, error in answers.items() if name in numbers),
        *(() if len(answers) < len(_CLOSER) else _looked_at(numbers)),
        *(() if signals else _own_signals(numbers)),
        (_RETURN, 0, 0, _ALLOW),
    ]
    raw = b"".join(struct.pack("HBBI", *one) for one in program)
    text = ctypes.create_string_buffer(raw, len(raw))
    head = struct.pack("HxxxxxxP", len(program), ctypes.addressof(text))
    _LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    return int(_LIBC.prctl(_SECCOMP, _MODE_FILTER, ctypes.c_char_p(head), 0, 0)) == 0


def bound_calls(signals: bool) -> bool:
    """Bind this process, for ever. False if the kernel has no such filters.

    Args:
        signals: leave signals to Landlock, which knows whose child a process is.
    """
    answers = ((_REFUSED, errno.EPERM), (_ABSENT, errno.ENOSYS), (_WITHOUT_EFFECT, 0))
    return refuse({name: error for calls, error in answers for name in calls}, signals)


def _answer(error: int) -> Instruction:
    return _RETURN, 0, 0, _ERRNO | error


def _refusals(calls: Iterable[tuple[int, int]]) -> Iterator[Instruction]:
    for number, error in calls:
        yield _EQUAL, 0, 1, number
        yield _answer(error)


def _argument(place: int, high: bool = False) -> Instruction:
    return _LOAD, 0, 0, _ARGUMENTS + 8 * place + 4 * high


def _if(number: int, *steps: Instruction) -> Iterator[Instruction]:
    """Steps for one call. They end with the call's number as before."""
    yield _EQUAL, 0, len(steps) + 1, number
    yield from steps
    yield _LOAD, 0, 0, _NUMBER


def _only(value: int, error: int = errno.EPERM) -> tuple[Instruction, Instruction]:
    return (_EQUAL, 1, 0, value), _answer(error)


def _looked_at(numbers: Mapping[str, int]) -> Iterator[Instruction]:
    """Calls of which some are needed."""
    yield from _if(numbers["socket"], _argument(0), *_only(_UNIX))
    yield from _if(numbers["sendto"], _argument(4), *_only(0), _argument(4, high=True), *_only(0))
    yield from _if(numbers["clone"], _argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _answer(errno.EPERM))
    for name in ("prlimit64", "sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr"):
        yield from _if(numbers[name], _argument(0), *_only(0))  # 0: oneself
    for name in ("setpriority", "ioprio_set"):
        yield from _if(numbers[name], _argument(1), *_only(0))


def _own_signals(numbers: Mapping[str, int]) -> Iterator[Instruction]:
    """A process signals itself only, or its own group."""
    own = os.getpid()
    for name in ("kill", "tgkill"):
        yield from _if(numbers[name], _argument(0), (_EQUAL, 2, 0, own), *_only(0))
    yield from _refusals((numbers[name], errno.EPERM) for name in _SIGNALS if name not in ("kill", "tgkill"))
    for what in _SET_OWNER:
        yield from _if(numbers["fcntl"], _argument(1), (_EQUAL, 0, 1, what), _answer(errno.EPERM))
