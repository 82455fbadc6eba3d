"""What ``/metrics`` shows, as values."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True)
class Sample:
    """One line of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


class Metrics:
    """One scrape.

    ``metrics["vllm:num_requests_running"]`` is the sum over all label sets;
    :meth:`value` that of some of them.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        """The scrape as it came."""
        self.samples = list(_samples(text))
        """Its lines, in their order."""

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels.

        Raises:
            KeyError: There is none.
        """
        wanted = labels.items()
        values = [s.value for s in self.samples if s.name == name and wanted <= s.labels.items()]
        if not values:
            shown = ", ".join(f"{key}={value!r}" for key, value in labels.items())
            raise KeyError(f"{name}{{{shown}}}")
        return sum(values)

    def __getitem__(self, name: str) -> float:
        return self.value(name)

    def __contains__(self, name: str) -> bool:
        return any(sample.name == name for sample in self.samples)


def _samples(text: str) -> Iterator[Sample]:
    for line in text.splitlines():
        if found := _LINE.match(line):
            labels = {key: _unescaped(value) for key, value in _LABEL.findall(found[2] or "")}
            yield Sample(found[1], labels, float(found[3]))


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text)
