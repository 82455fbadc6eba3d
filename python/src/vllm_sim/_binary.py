"""Where the program is."""

import os
import shutil
import sysconfig
from pathlib import Path

_VARIABLE = "VLLM_SIM_BINARY"


class BinaryNotFound(RuntimeError):
    """There is no program to start."""


def find_binary() -> str:
    """The program: what ``VLLM_SIM_BINARY`` names, that of this installation, or one on ``PATH``.

    Raises:
        BinaryNotFound: There is none, or the variable names what cannot be started.
    """
    if named := os.environ.get(_VARIABLE):
        path = shutil.which(named)
        if path is None:
            raise BinaryNotFound(f"{_VARIABLE}={named!r} is not an executable program")
        return path
    for scheme in (sysconfig.get_default_scheme(), f"{os.name}_user"):
        path = shutil.which("vllm-sim", path=sysconfig.get_path("scripts", scheme))
        if path is not None:
            return path
    # Installed with `pip install --target`, which has a `bin` of its own.
    beside = Path(__file__).resolve().parent.parent / "bin"
    path = shutil.which("vllm-sim", path=str(beside)) or shutil.which("vllm-sim")
    if path is None:
        raise BinaryNotFound(
            f"no vllm-sim found: install the wheel, put it on PATH, or name it in {_VARIABLE}"
        )
    return path
