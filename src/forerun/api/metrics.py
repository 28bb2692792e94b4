"""What a server counts, for Prometheus: requests, tokens, cache, loads, queue."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from forerun.protocol.events import Drafting, Figures

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One set of metrics a server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "forerun_requests",
            "Requests by model and how they ended",
            ["model", "outcome"],
            registry=self._registry,
        )
        self._tokens = Counter(
            "forerun_tokens",
            "Tokens by model and kind: prompt, cached, generated",
            ["model", "kind"],
            registry=self._registry,
        )
        self._drafting = Counter(
            "forerun_drafting",
            "Drafting by model, drafter and kind: rounds, drafted and accepted tokens",
            ["model", "drafter", "kind"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "forerun_seconds",
            "Seconds by model and phase: load, first_token, prompt, generation",
            ["model", "phase"],
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
            registry=self._registry,
        )
        self.waiting = Gauge(
            "forerun_waiting_requests", "Requests without a turn", registry=self._registry
        )
        self.loaded = Gauge("forerun_loaded_models", "Loaded models", registry=self._registry)
        self._memory = Gauge(
            "forerun_memory_bytes",
            "Memory by loaded model and use: weights, caches, snapshots, budget, device_total",
            ["model", "use"],
            registry=self._registry,
        )

    def answered(self, model: str, reason: str, figures: Figures) -> None:
        """A completion came to its end."""
        self.requests.labels(model, reason).inc()
        counts = {
            "prompt": figures.prompt_tokens,
            "cached": figures.cached_tokens,
            "generated": figures.generated_tokens,
        }
        for kind, count in counts.items():
            self._tokens.labels(model, kind).inc(count)
        if figures.drafting is not None:
            self._drafted(model, figures.drafting)
        seconds = {
            "first_token": figures.first_token_seconds,
            "prompt": figures.prompt_seconds,
            "generation": figures.generation_seconds,
        }
        for phase, value in seconds.items():
            self._seconds.labels(model, phase).observe(value)

    def _drafted(self, model: str, drafting: Drafting) -> None:
        counts = {
            "rounds": drafting.rounds,
            "drafted": drafting.drafted,
            "accepted": drafting.accepted,
        }
        for kind, count in counts.items():
            self._drafting.labels(model, drafting.drafter, kind).inc(count)

    def load_took(self, model: str, seconds: float) -> None:
        """A request waited so long for its model's load."""
        self._seconds.labels(model, "load").observe(seconds)

    def failed(self, model: str, status: int) -> None:
        """A request ended with an error, or nobody was there to read its answer (499)."""
        self.requests.labels(model, "cancelled" if status == 499 else f"error_{status}").inc()

    def remember_memory(self, memory: dict[str, dict[str, int]]) -> None:
        """Bytes by use, of each model that is loaded now."""
        self._memory.clear()
        for model, uses in memory.items():
            for use, count in uses.items():
                self._memory.labels(model, use).set(count)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)
