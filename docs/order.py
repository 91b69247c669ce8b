"""The order in which axonn reads the samples of its sources, as docs/training.md defines it; no other modules.

    python3 docs/order.py     # the table of test vectors in docs/training.md

samples(tokens, length): how many samples of `length` tokens a stream of this many tokens has; the last may be shorter.
sample(seed, source, n, count): which of the n samples of a source is read when `count` of them were read before."""
W, M = 2**32 - 1, 2**64 - 1


def philox(key, high, low):  # Philox4x32-10; the first 64 bits of the block
    c, k = [low & W, low >> 32, high & W, high >> 32], [key & W, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & W, a >> 32 ^ c[3] ^ k[1], a & W]
        k = [k[0] + 0x9E3779B9 & W, k[1] + 0xBB67AE85 & W]
    return c[1] << 32 | c[0]


def xxh3(text, seed):  # XXH3-64 of 9 to 16 bytes: xxhash.xxh3_64_intdigest(text, seed)
    first, last = (int.from_bytes(part, "little") for part in (text[:8], text[-8:]))
    low, high = first ^ (0x6782737BEA4239B9 + seed & M), last ^ (0xAF56BC3B0996523A - seed & M)
    mixed = low * high
    h = len(text) + int.from_bytes(low.to_bytes(8, "big"), "little") + high + (mixed & M ^ mixed >> 64) & M
    h = (h ^ h >> 37) * 0x165667919E3779F9 & M
    return h ^ h >> 32


def key(seed, purpose, index):
    return philox(xxh3(purpose, seed), seed, index)


def permute(key, n, i):  # a Feistel network of 6 rounds; numbers from n on are walked further
    half = next(h for h in range(1, 33) if 4**h >= n or h == 32)
    while True:
        left, right = i >> half, i & 2**half - 1
        for turn in range(6):
            left, right = right, left ^ philox(key, 2 + turn, right) & 2**half - 1
        i = left << half | right
        if i < n:
            return i


def samples(tokens, length):
    return -((1 - tokens) // length)


def sample(seed, source, n, count):
    of_source = key(key(seed, b"data order", 0), b"data/order", source)
    return permute(key(of_source, b"data/epoch", count // n), n, count % n)


if __name__ == "__main__":
    for seed, source, n in (1234, 0, 8), (1234, 1, 8), (7, 0, 13):
        print(f"| {seed} | {source} | {n} | {' '.join(str(sample(seed, source, n, c)) for c in range(2 * n))} |")
