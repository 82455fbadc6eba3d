"""``python -m vllm_sim`` is the program."""

import os
import subprocess
import sys

from vllm_sim import find_binary


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "vllm_sim", *arguments]
    return subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True)


def test_arguments_output_and_exit_code_are_the_programs() -> None:
    for arguments in (["--version"], ["--model", "demo", "--no-such-flag"]):
        own = subprocess.run([find_binary(), *arguments], capture_output=True, text=True)
        ours = run(*arguments)
        assert (ours.returncode, ours.stdout) == (own.returncode, own.stdout)
    assert "--no-such-flag" in ours.stderr


def test_a_program_that_is_not_there_is_named() -> None:
    ours = run("--version", VLLM_SIM_BINARY="no-such-program")
    assert ours.returncode == 1
    assert ours.stderr.startswith("error: VLLM_SIM_BINARY='no-such-program'")
