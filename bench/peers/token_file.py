"""Token files of `axonn data build`; the format is described in include/axonn/data.h."""

import struct

import numpy as np


class Tokens:
    """A packed token file: ids, starts of documents, size of the vocabulary, bytes of text."""

    def __init__(self, path):
        with open(path, "rb") as f:
            head = f.read(256)
        if head[:8] != b"AXTOKENS":
            raise SystemExit(f"{path} is no token file of axonn data build")
        width, = struct.unpack_from("<I", head, 12)
        count, documents, self.vocab = struct.unpack_from("<QQQ", head, 16)
        self.text_bytes, at, index = struct.unpack_from("<QQQ", head, 56)
        self.ids = np.memmap(path, "<u2" if width == 2 else "<u4", "r", at, (count,))
        self.starts = np.memmap(path, "<u8", "r", index, (documents + 1,))[:-1]
