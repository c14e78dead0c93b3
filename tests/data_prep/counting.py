"""A file that counts the bytes that are read of it."""

from __future__ import annotations

import os
from io import RawIOBase


class Counting(RawIOBase):
    def __init__(self, content):
        super().__init__()
        self.content, self.at, self.count = content, 0, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=os.SEEK_SET):
        self.at = {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: len(self.content)}[whence]
        self.at += offset
        return self.at

    def readinto(self, target):
        piece = self.content[self.at : self.at + len(target)]
        target[: len(piece)] = piece
        self.at += len(piece)
        self.count += len(piece)
        return len(piece)
