"""Which machines a wheel is for, by the program in it."""

import struct

import pytest

import pack_wheel


def elf(machine: int, kinds: list[int], rest: bytes = b"") -> bytes:
    """A program of program headers of these kinds, and nothing that runs."""
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, len(kinds), 0, 0, 0)
    return head + b"".join(struct.pack("<I", kind).ljust(56, b"\0") for kind in kinds) + rest


def test_a_static_program_runs_beside_any_c_library() -> None:
    # What a static glibc has in its texts asks for nothing.
    program = elf(183, [6, 1, 2], b"GLIBC_2.34")
    assert pack_wheel.platforms(program) == ["manylinux_2_17_aarch64", "musllinux_1_1_aarch64"]


def test_another_one_wants_the_newest_glibc_that_it_names() -> None:
    program = elf(62, [6, 3, 1], b"GLIBC_2.4 GLIBC_2.34 GLIBC_2.14")
    assert pack_wheel.platforms(program) == ["manylinux_2_34_x86_64"]
    assert pack_wheel.platforms(elf(62, [3], b"GLIBC_2.4")) == ["manylinux_2_17_x86_64"]


@pytest.mark.parametrize("program", [b"#!/bin/sh\n".ljust(64), elf(243, [1])])
def test_others_are_refused(program: bytes) -> None:
    with pytest.raises(SystemExit):
        pack_wheel.platforms(program)
