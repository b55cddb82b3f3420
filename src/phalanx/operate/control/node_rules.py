"""What the policy says of nodes by their names: labels, spot, price. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from phalanx.core.ids import NodeId
from phalanx.core.policy import Policy
from phalanx.fabric.catalogue import lookup

_SIGN: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Known:
    """Of one node. price: US dollars per device and hour, where the policy has one."""

    labels: Mapping[str, str] = field(default_factory=dict)
    spot: bool = False
    price: float | None = None

    def price_of(self, kind: str) -> float:
        """Of a device of that type: the policy's, else the catalogue's; 0 where neither has one."""
        if self.price is not None:
            return self.price
        model = lookup(kind)
        return model.price_per_hour if model else 0.0


def known_of(policy: Policy, node: NodeId) -> Known:
    """Later rules win, field by field and label by label."""
    labels: dict[str, str] = {}
    spot, price = False, None
    for rule in policy.nodes:
        if node.startswith(_literal(rule.match)) and fnmatchcase(node, rule.match):
            labels.update(rule.labels)
            spot = spot if rule.spot is None else rule.spot
            price = price if rule.price is None else rule.price
    return Known(labels, spot, price)


def _literal(match: str) -> str:
    """What a glob begins with before its first sign: of thousands of rules, one a rack, it tells most apart from a node's name."""
    return _SIGN.split(match, 1)[0]
