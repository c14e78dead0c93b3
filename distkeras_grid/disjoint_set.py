"""What belongs together, directly or through others; no I/O."""

from __future__ import annotations

from collections.abc import Hashable


class DisjointSet:
    """Sets of nodes that grow together. A node that was never joined is a set of its own.

    Examples
    --------
    >>> units = DisjointSet()
    >>> units.join("a", "b")
    >>> units.join("b", "c")
    >>> units.root("a") == units.root("c"), units.root("a") == units.root("d")
    (True, False)
    """

    def __init__(self) -> None:
        self._parents: dict[Hashable, Hashable] = {}

    def root(self, node: Hashable) -> Hashable:
        """Return the node that stands for the set of a node."""
        parents = self._parents
        while parents.setdefault(node, node) != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    def join(self, one: Hashable, other: Hashable) -> None:
        """Make one set of two; the root of `other` stands for it."""
        self._parents[self.root(one)] = self.root(other)
