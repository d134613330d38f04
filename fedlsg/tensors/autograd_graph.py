"""Questions about autograd's graph."""

from collections.abc import Collection

from torch.autograd.graph import Node


def leads_to(end: Node | None, places: Collection[Node]) -> bool:
    """Whether the value of node ``end`` was computed from the value of one of the nodes ``places``."""
    seen: set[Node] = set()
    due = [end]
    while due:
        node = due.pop()
        if node is None or node in seen:
            continue
        if node in places:
            return True
        seen.add(node)
        due += [before for before, _ in node.next_functions]
    return False
