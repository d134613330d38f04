"""What leads where in autograd's graph."""

from collections.abc import Collection

from torch.autograd.graph import Node


def leads_to(end: Node | None, places: Collection[Node]) -> bool:
    """Whether what was made at ``end`` was made from what was made at one of the ``places``."""
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
