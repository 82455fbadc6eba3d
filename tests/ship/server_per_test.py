#!/usr/bin/env python3
"""A pytest module of 100 tests, each with a server of its own: server_per_test.py [--most SECONDS]

Run it where the package and pytest are; it prints how long pytest took, and fails beyond --most [15].
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODULE = """
import pytest

@pytest.mark.parametrize("n", range(100))
def test_a_chat(vllm_server, n):
    body = {"model": "demo", "messages": [{"role": "user", "content": f"Hello {n}"}], "max_tokens": 4}
    assert vllm_server.request("POST", "/v1/chat/completions", body).status == 200
    assert len(vllm_server.requests(wait=1)) == 1
"""

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--most", type=float, default=15.0, metavar="SECONDS")
most = parser.parse_args().most
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "test_hundred.py")
    path.write_text(MODULE)
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    ended = subprocess.run(command, check=False, cwd=folder)
    took = time.monotonic() - begin
print(f"100 tests with a server each: {took:.1f} s")
sys.exit(ended.returncode or int(took > most))
