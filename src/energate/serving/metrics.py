"""Counts and times of requests, in the text format that Prometheus reads."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

#: upper ends of the bins of times, in seconds
BINS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass
class Metrics:
    """What has been asked of a server since it started; only known paths are labels, so that it stays small."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    bins: Counter[tuple[str, int]] = field(default_factory=Counter)
    running: int = 0

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.requests[path, status] += 1
        self.seconds[path] += seconds
        self.bins[path, bisect_left(BINS, seconds)] += 1

    def text(self, gauges: Iterable[tuple[str, str, str, float]]) -> str:
        """All numbers; ``gauges`` are more of them: name, kind, help and value."""
        lines = _header("energate_requests_total", "counter", "Requests answered.")
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'energate_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += _header("energate_request_seconds", "histogram", "Time from a request's arrival to its answer.")
        for path in sorted(self.seconds):
            total = 0
            for number, end in enumerate((*map(str, BINS), "+Inf")):
                total += self.bins[path, number]
                lines.append(f'energate_request_seconds_bucket{{path="{path}",le="{end}"}} {total}')
            lines.append(f'energate_request_seconds_sum{{path="{path}"}} {self.seconds[path]:.6f}')
            lines.append(f'energate_request_seconds_count{{path="{path}"}} {total}')
        for name, kind, about, value in (
            ("requests_running", "gauge", "Requests not yet answered.", self.running),
            *gauges,
        ):
            lines += [*_header(f"energate_{name}", kind, about), f"energate_{name} {value}"]
        return "\n".join(lines) + "\n"


def _header(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
