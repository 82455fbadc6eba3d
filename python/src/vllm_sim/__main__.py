"""``python -m vllm_sim``: the program, with the same arguments."""

import os
import sys

from ._binary import BinaryNotFound, find_binary


def main() -> None:
    """Becomes the program, so that signals and the exit code are its own."""
    try:
        binary = find_binary()
    except BinaryNotFound as error:
        sys.exit(f"error: {error}")
    os.execv(binary, ["vllm-sim", *sys.argv[1:]])


if __name__ == "__main__":
    main()
