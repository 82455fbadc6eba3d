"""Rebuilds the set of cached blocks from KV events, as a router does.

    pip install pyzmq msgspec
    python tests/python/kv_subscriber.py tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558

Listens until nothing has come for --quiet seconds, then prints one JSON object: what was heard and
which blocks are cached. Exit code 1 names what a publisher must never do: a hole in the sequence
numbers that replay cannot fill, a block whose parent is not cached, a removal of a block that is
not cached, a wrong number of tokens.
"""
import argparse, collections, json, sys

import msgspec
import zmq

FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
                    "medium", "lora_name", "extra_keys", "group_idx"),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


class Cache:
    def __init__(self, hashes_only):
        self.copies = collections.Counter()
        self.heard = collections.Counter()
        self.faults = []
        self.next = None
        self.hashes_only = hashes_only

    def batch(self, sequence, payload):
        if self.next is not None and sequence != self.next:
            self.faults.append(f"sequence {sequence} where {self.next} was due")
        self.next = sequence + 1
        ts, events, rank = msgspec.msgpack.decode(payload)
        if not (isinstance(ts, float) and isinstance(rank, int)):
            self.faults.append(f"batch {sequence}: ts {ts!r}, rank {rank!r}")
        for event in events:
            self.event(event)

    def event(self, event):
        if isinstance(event, list):
            event = {"type": event[0], **dict(zip(FIELDS[event[0]], event[1:]))}
        kind = event["type"]
        self.heard[kind] += 1
        if kind == "AllBlocksCleared":
            self.copies.clear()
            return
        hashes = event["block_hashes"]
        if kind == "BlockRemoved":
            for block in hashes:
                if not self.copies[block]:
                    self.faults.append(f"removed {block!r}, which is not cached")
                    continue
                # One hash may be cached in several copies; the last one counts.
                self.copies[block] -= 1
                if not self.copies[block]:
                    del self.copies[block]
            return
        if not self.hashes_only:
            parent = event["parent_block_hash"]
            if parent and not self.copies[parent]:
                self.faults.append(f"stored {hashes!r} after {parent!r}, which is not cached")
            if len(event["token_ids"]) != len(hashes) * event["block_size"]:
                self.faults.append(f"stored {hashes!r} with {len(event['token_ids'])} tokens")
        self.copies.update(hashes)


def replay(context, endpoint, start, timeout):
    """Batches from `start`, up to the end marker."""
    dealer = context.socket(zmq.DEALER)
    dealer.linger, dealer.rcvtimeo = 0, timeout
    dealer.connect(endpoint)
    dealer.send_multipart([b"", start.to_bytes(8, "big")])
    while True:
        empty, topic, sequence, payload = dealer.recv_multipart()
        if sequence == b"\xff" * 8:
            assert (empty, topic, payload) == (b"", b"", b""), "the end marker is empty"
            return
        yield int.from_bytes(sequence, "big"), payload


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("endpoint")
    parser.add_argument("--bind", action="store_true", help="the publisher connects")
    parser.add_argument("--topic", default="")
    parser.add_argument("--replay", help="endpoint of the replay socket, asked first and at holes")
    parser.add_argument("--quiet", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--hashes-only", action="store_true", help="llm-d v0.6: no parents or tokens")
    args = parser.parse_args()
    context, timeout = zmq.Context(), int(args.quiet * 1000)
    sub = context.socket(zmq.SUB)
    sub.setsockopt_string(zmq.SUBSCRIBE, args.topic)
    sub.rcvtimeo = timeout
    (sub.bind if args.bind else sub.connect)(args.endpoint)
    cache, topics, replayed = Cache(args.hashes_only), set(), 0
    while True:
        try:
            topic, sequence, payload = sub.recv_multipart()
        except zmq.Again:
            break
        topics.add(topic.decode())
        sequence = int.from_bytes(sequence, "big")
        due = cache.next or 0
        if args.replay and sequence > due:
            for missed, old in replay(context, args.replay, due, timeout):
                # Never past this one: what follows comes on the live stream too.
                if missed < sequence:
                    cache.batch(missed, old)
                    replayed += 1
        if cache.next is None or sequence >= cache.next:
            cache.batch(sequence, payload)
    report = {
        "topics": sorted(topics),
        "next_sequence": cache.next,
        "replayed": replayed,
        "heard": dict(cache.heard),
        "cached": sorted(b if isinstance(b, int) else b.hex() for b in cache.copies),
        "copies": sum(cache.copies.values()),
        "faults": cache.faults,
    }
    print(json.dumps(report))
    return 1 if cache.faults else 0


if __name__ == "__main__":
    sys.exit(main())
