"""YAML as job files are read: hostile text, and no surprises."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

from phalanx.core.errors import SpecError

DEPTH_MAX: Final = 32
"""Of mappings and lists inside each other; what is read here has six. Each level costs PyYAML some frames of the stack, and the
more are open, the more time its look ahead for keys."""

NUMBER_CHARS_MAX: Final = 100
"""Python takes time that grows with the square of a number's length, and shows none of over 4,300 digits."""

_LEFT_OUT: Final = frozenset({"tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"})
_NUMBERS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


def read_yaml_file(path: Path, what: str, bytes_max: int) -> Any:
    """The data in a YAML file that people call `what`. Raises SpecError for one that is too large, unreadable or malformed."""
    try:
        if path.stat().st_size > bytes_max:
            raise SpecError(what, str(path), f"keep it under {bytes_max // 1024} KiB")
        return read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(what, str(path), f"cannot be read ({error.strerror}); name an existing YAML file") from error
    except UnicodeDecodeError as error:
        raise SpecError(what, str(path), "is not UTF-8 text; save it as UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise SpecError(what, str(path), f"is not valid YAML{line}: {getattr(error, 'problem', error)}") from error


def read_yaml(text: str) -> Any:
    """YAML as job files are read. Raises yaml.YAMLError, RecursionError."""
    try:
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506 (a SafeLoader)
    except ValueError as error:  # PyYAML's, of what stands outside of any value, such as the version in %YAML
        raise yaml.YAMLError(str(error)) from error


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases: an alias bomb of 1 KiB expands to gigabytes. Duplicate keys are refused, only true and
    false are booleans, and dates are texts: whoever wants one reads it, and says what to write. Depth and numbers have bounds."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._depth = 0

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if node.tag in _NUMBERS and len(node.value) > NUMBER_CHARS_MAX:
            problem = f"a number has at most {NUMBER_CHARS_MAX} characters, and this one {len(node.value)}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, OverflowError) as error:  # PyYAML's, of a value that its own tag belies
            problem = f"{getattr(node, 'value', '')!r} is no {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not accepted; write the value out", problem_mark=self.get_mark()
            )
        if self._depth == DEPTH_MAX:
            problem = f"mappings and lists lie at most {DEPTH_MAX} deep"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        if not isinstance(node, yaml.MappingNode):  # `!!map` before something else
            raise yaml.MarkedYAMLError(problem="a mapping was expected here", problem_mark=node.start_mark)
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
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _LEFT_OUT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
