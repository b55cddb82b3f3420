"""YAML as job files are read: hostile text, and no surprises."""

import re
from typing import Any

import yaml


def read_yaml(text: str) -> Any:
    """YAML as job files are read. Raises yaml.YAMLError, RecursionError."""
    return yaml.load(text, Loader=_PlainLoader)  # noqa: S506 (a SafeLoader)


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases: an alias bomb of 1 KiB expands to gigabytes. Duplicate keys are refused, and only true and
    false are booleans."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not accepted; write the value out", problem_mark=self.get_mark()
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be plain text", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# YAML 1.1 also reads on, off, yes and no as booleans, keys included: `notify: {on: [finished]}` would have no `on`.
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
