"""Writes block-hash vectors made by Python's own pickle, cbor2, hashlib and xxhash.

    pip install cbor2 xxhash
    python tests/python/kv_hash_vectors.py > tests/fixtures/kv_block_hashes.jsonl

One JSON object per line: what goes in, and `hashes`, the whole hash of each full block in hex.
`salt` and `tokens` may be [what, times] and [seed, count] to keep the file small.
"""
import hashlib, json, pickle, random, struct, sys

import cbor2
import xxhash


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return struct.pack(">Q", h)


def cbor(item):
    return cbor2.dumps(item, canonical=True)


def pickled(item):
    return pickle.dumps(item, protocol=5)


def sha(data):
    return hashlib.sha256(data).digest()


def xxh(data):
    return xxhash.xxh3_128_digest(data)


VLLM = {
    "sha256": (pickled, sha),
    "sha256_cbor": (cbor, sha),
    "xxhash": (pickled, xxh),
    "xxhash_cbor": (cbor, xxh),
}


def number(digest):
    return int.from_bytes(digest, "big")


def tokens_of(spec):
    if isinstance(spec, list):
        return spec
    seed, count = spec["seed"], spec["count"]
    # A recurrence that any language can repeat.
    out = []
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((seed >> 33) % 200000)
    return out


def salt_of(spec):
    return spec["text"] * spec["times"] if isinstance(spec, dict) else spec


def overlaps(case, start, end):
    return [(i, s - start) for i, s, n in case["media"] if s < end and s + n > start]


def vllm(case, tokens):
    enc, digest = VLLM[case["algo"]]
    size, salt, lora = case["block_size"], salt_of(case["salt"]), case["lora"]
    parent = digest(enc("vllm-none-hash" if case["seed"] is None else case["seed"]))
    ahead = case.get("lookahead", 0)
    for start in range(0, len(tokens) - ahead - size + 1, size):
        end = start + size
        extra = [("lora", lora[0], lora[1])] if lora else []
        extra += [("mm", i, offset) for i, offset in overlaps(case, start, end + ahead)]
        extra += [("cache_salt", salt)] if salt and start == 0 else []
        extra = tuple(extra) or None
        if ahead:
            extra = (extra, *tokens[end : end + ahead])
        parent = digest(enc((parent, tuple(tokens[start:end]), extra)))
        yield parent


def llmd(case, tokens):
    size, seed, salt = case["block_size"], case["seed"] or "", salt_of(case["salt"])
    if case["algo"] == "llm-d-fnv":
        def digest(data):
            return fnv1a(data)
        model = case["lora"][0] if case["lora"] else case["model"]
        parent = digest(cbor([number(fnv1a(seed.encode())), None, model]))
    else:
        def digest(data):
            return sha(data)[24:]
        parent = digest(cbor(seed))
    for start in range(0, len(tokens) - size + 1, size):
        names = []
        if case["algo"] == "llm-d-fnv":
            names = [i for i, _ in overlaps(case, start, start + size)]
            names += [salt] if salt and start == 0 else []
        extra = [{"Hash": name} for name in names] or None
        parent = digest(cbor([number(parent), tokens[start : start + size], extra]))
        yield parent


def case(rng, algo):
    size = rng.choice([1, 2, 3, 4, 8, 16, 32])
    count = rng.randint(size, size * 6)
    top = rng.choice([24, 256, 70000, 2**31, 2**32])
    word = lambda: "".join(rng.choice("abcXYZ-_/ é漢🙂") for _ in range(rng.choice([2, 9, 24, 300])))
    return {
        "algo": algo,
        "seed": rng.choice([None, "", "0", "42", "random", word()]),
        "block_size": size,
        "tokens": [rng.randrange(top) for _ in range(count)],
        "lora": rng.choice([None, None, [word(), word()]]),
        "model": rng.choice(["my_model", word()]),
        "salt": rng.choice([None, None, word()]),
        "media": sorted(
            ([word(), rng.randrange(count), rng.randint(1, 40)] for _ in range(rng.choice([0, 0, 1, 5]))),
            key=lambda item: item[1],
        ),
    }


def special(algo):
    plain = {"algo": algo, "seed": "0", "block_size": 4, "tokens": {"seed": 1, "count": 9},
             "lora": None, "model": "m", "salt": None, "media": []}
    yield plain | {"block_size": 20000, "tokens": {"seed": 2, "count": 40001}}
    yield plain | {"salt": {"text": "s", "times": 255}}
    yield plain | {"salt": {"text": "s", "times": 256}}
    yield plain | {"salt": {"text": "é", "times": 40000}}
    yield plain | {"salt": {"text": "x", "times": 65535}, "lora": ["l", "p"]}
    yield plain | {"salt": {"text": "x", "times": 65536}, "lora": ["l", "p"]}
    # Texts of which CPython has one object: pickled once, then fetched from the memo.
    yield plain | {"salt": "a", "lora": ["a", "a"]}
    yield plain | {"salt": "é", "lora": ["é", ""], "media": [["", 0, 4], ["x", 1, 2]]}
    # More memo entries than one byte can number.
    yield plain | {"block_size": 256, "tokens": {"seed": 3, "count": 512},
                   "media": [[f"picture-{i}", i, 1] for i in range(256)]}


def main():
    rng = random.Random(20250801)
    for algo in [*VLLM, "llm-d-fnv", "llm-d-sha256"]:
        cases = [case(rng, algo) for _ in range(14)] + list(special(algo))
        for c in cases:
            # As a server gets them: decoded, so that equal texts are not one object by accident.
            c = json.loads(json.dumps(c))
            hashes = (vllm if algo in VLLM else llmd)(c, tokens_of(c["tokens"]))
            c["hashes"] = [h.hex() for h in hashes]
            print(json.dumps(c, ensure_ascii=False, separators=(",", ":")))
    # Names that cover the tokens behind a block, as with drafts of eagle and mtp.
    for algo in VLLM:
        for ahead in (1, 1, 2, 3, 5):
            c = json.loads(json.dumps(case(rng, algo) | {"lookahead": ahead}))
            c["hashes"] = [h.hex() for h in vllm(c, tokens_of(c["tokens"]))]
            print(json.dumps(c, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    sys.exit(main())
