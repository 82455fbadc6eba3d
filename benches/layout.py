#!/usr/bin/env python3
"""The functions that a server runs, as a linker script that puts them beside each other.

    cargo build --release && cargo build --profile dist
    benches/layout.py target/release/vllm-sim target/dist/vllm-sim > function_layout.ld
    benches/layout.py --check target/release/vllm-sim

Runs each BINARY under callgrind in each command-line mode: its start, chats, and streams with and without
delays. What it calls is written down without the hash of its name, which another compiler or another
version changes, also another profile; where functions of one such name take much more room than those called, with it.
`--check` says how much of what a server runs a build has there, and fails below nine tenths.
"""
import argparse, collections, importlib.util, pathlib, re, subprocess, sys, tempfile

spec = importlib.util.spec_from_file_location("instructions", pathlib.Path(__file__).with_name("instructions.py"))
instructions = importlib.util.module_from_spec(spec)
spec.loader.exec_module(instructions)

REQUESTS, TOKENS = 100, 20
PACED = ["--time-to-first-token", "20", "--inter-token-latency", "2"]
# More than one instance of so many bytes is told apart by its hash.
WASTE = 2048


def called(binary, flags, times, stream):
    """How often each function is called, by its name in the object files."""
    with tempfile.NamedTemporaryFile("r") as counts:
        instructions.under_callgrind(binary, flags, counts.name, ["--demangle=no"], times, TOKENS, stream)
        names, calls, name = {}, collections.Counter(), None
        for line in counts:
            if found := re.match(r"c?fn=\((\d+)\)(?: ([^'\s]+))?", line):
                name = found[1]
                names.setdefault(name, found[2])
                calls[name] += 0
            elif line.startswith("calls="):
                calls[name] += int(line[6:].split()[0])
    together = collections.Counter()
    for name, count in calls.items():
        together[names[name]] += max(count, 1)
    return together


def told(*command, check=True):
    """The lines that a program writes."""
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout.splitlines()


def unlikely(binary):
    """The functions that the compiler put into sections for what is seldom called."""
    sysroot = told("rustc", "--print", "sysroot")[0]
    built = pathlib.Path(binary).parent.glob("deps/*.rlib"), pathlib.Path(sysroot).glob("lib/rustlib/*/lib/*.rlib")
    for library in (library for libraries in built for library in libraries):
        # One that is to be optimised when it is linked holds no machine code.
        for line in told("objdump", "--syms", library, check=False):
            if " .text.unlikely." in line:
                yield line.split()[-1]


def pattern(name):
    """A name of a function without hashes."""
    name = re.sub(r"17h[0-9a-f]{16}E.*", "17h*", name)
    return re.sub(r"Cs[0-9A-Za-z]{8,13}_", "Cs*_", name) if name.startswith("_R") else name


def functions(binary):
    """The functions of a program and those that a server runs: where each begins, its size, calls by requests."""
    places = {}
    for place, size, kind, name in (line.split() for line in told("nm", "--print-size", binary) if line.count(" ") == 3):
        if kind in "tTwW":
            places[name] = int(place, 16), int(size, 16)
    start, whole = collections.Counter(), collections.Counter()
    for flags in instructions.MODES.values():
        start |= called(binary, flags, 0, False)
        for stream in (False, True):
            whole |= called(binary, flags, REQUESTS, stream)
    whole |= called(binary, instructions.MODES["plain"] + PACED, REQUESTS // 10, True)
    return places, {name: whole[name] - start[name] for name in whole if name in places}


def patterns(binary, cold):
    """The sections of what a server runs, and how often requests call it: a power of two."""
    places, calls = functions(binary)
    spare = collections.Counter()
    for name, (_, size) in places.items():
        spare[pattern(name)] += 0 if name in calls else size
    for name, often in calls.items():
        known = pattern(name)
        written = name if spare[known] > WASTE else known
        often = (often * 10 // REQUESTS).bit_length()
        yield f".text.{written}", often
        if known in cold:
            yield f".text.unlikely.{written}", often


def is_laid_out(binary):
    """Whether nine tenths of what a server runs lie together."""
    places, calls = functions(binary)
    section = [line.split(".text.used")[1].split() for line in told("readelf", "-SW", binary) if ".text.used" in line]
    if not section:
        sys.exit(f"{binary} has no section .text.used")
    first, length = int(section[0][1], 16), int(section[0][3], 16)
    used = sum(places[name][1] for name in calls)
    there = sum(places[name][1] for name in calls if first <= places[name][0] < first + length)
    print(f"{there:,} of {used:,} bytes, {there / used:.1%}")
    return there >= 0.9 * used


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("binary", nargs="+")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    if args.check:
        sys.exit(not all([is_laid_out(binary) for binary in args.binary]))
    cold = {pattern(name) for binary in args.binary for name in unlikely(binary)}
    found = collections.Counter()
    for binary in args.binary:
        for section, often in patterns(binary, cold):
            found[section] = max(found[section], often)
    print("/* @generated by benches/layout.py: what requests call, the most often called first, and what else a server does. */")
    print("SECTIONS\n{\n  .text.used :\n  {")
    for often in sorted(set(found.values()), reverse=True):
        # One list for all of them: the linker looks through all sections for each list.
        print("    *(", *sorted(section for section in found if found[section] == often), "    )", sep="\n")
    print("  }\n}\nINSERT BEFORE .text;")


if __name__ == "__main__":
    main()
