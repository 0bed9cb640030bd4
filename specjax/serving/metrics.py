"""Figures of the server in Prometheus' form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specjax.runtime.request import Update

if TYPE_CHECKING:
    from specjax.serving.worker import Worker

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Bounds of the classes of times."""


class Metrics:
    """What is counted. A `specjax.serving.worker.Observer`.

    Attributes:
        registry: of this server alone.
        requests: answers by path and status.
        seconds: how long answers took, by path.
        first_token: until the first token of a text was known.
    """

    def __init__(self, name: str) -> None:
        """
        Args:
            name: the model's, as clients call it.
        """
        self.registry = registry = CollectorRegistry()
        Gauge("specjax_model_info", "the model that is served", ["model"], registry=registry).labels(name).set(1)
        self.requests = Counter("specjax_requests", "answers", ["path", "status"], registry=registry)
        self.seconds = Histogram("specjax_request_seconds", "answers", ["path"], buckets=SECONDS, registry=registry)
        self.first_token = Histogram(
            "specjax_first_token_seconds", "until the first token", buckets=SECONDS, registry=registry
        )
        self._texts = Counter("specjax_texts", "texts that ended", ["reason"], registry=registry)
        self._prompt_tokens = Counter("specjax_prompt_tokens", "tokens of prompts", registry=registry)
        self._reused = Counter("specjax_prompt_tokens_reused", "tokens that were not computed again", registry=registry)
        self._tokens = Counter("specjax_generated_tokens", "tokens that were generated", registry=registry)
        self._rounds = Counter("specjax_rounds", "rounds of rows that decoded", registry=registry)
        self._drafted = Counter("specjax_drafted_tokens", "drafts that were verified", ["position"], registry=registry)
        self._accepted = Counter("specjax_accepted_tokens", "drafts that stood", ["position"], registry=registry)
        self._steps = Histogram("specjax_step_seconds", "steps of the engine", buckets=SECONDS, registry=registry)
        self._failures = Counter("specjax_engine_failures", "engines that failed and were replaced", registry=registry)

    def watch(self, worker: Worker) -> None:
        """Ask a worker for what is so at the moment, whenever somebody looks."""

        def gauge(name: str, text: str, value: object) -> None:
            Gauge(f"specjax_{name}", text, registry=self.registry).set_function(value)  # type: ignore[arg-type]

        def busy() -> int:
            return sum(job is not None for job in worker.engine.jobs())

        gauge("queue", "texts that wait", lambda: len(worker.queue) + worker.engine.load - busy())
        gauge("seats", "seats", lambda: worker.engine.seats)
        gauge("seats_busy", "seats with a text", busy)
        gauge("prefix_hits", "prompts that went on from a kept text", lambda: worker.engine.prefixes.hits)
        gauge("prefix_tokens", "tokens that were taken from kept texts", lambda: worker.engine.prefixes.tokens)
        gauge("prefix_bytes", "bytes of kept texts", lambda: worker.engine.prefixes.used_bytes)
        gauge("compile_seconds", "seconds spent on compiling", lambda: worker.engine.compile_seconds)

    def page(self) -> bytes:
        """All figures, as the text that Prometheus reads."""
        return generate_latest(self.registry)

    def stepped(self, seconds: float) -> None:
        self._steps.observe(seconds)

    def updated(self, update: Update) -> None:
        job, row = update.job, update.row
        self._tokens.inc(len(update.tokens))
        if update.record is not None:
            rounds, count = update.record.rounds, int(update.record.n_rounds)
            ran = np.asarray(rounds.n_emitted)[:count, row] > 0
            self._rounds.inc(int(ran.sum()))
            for place in range(rounds.drafts.shape[-1]):
                for counter, numbers in ((self._drafted, rounds.n_drafted), (self._accepted, rounds.n_accepted)):
                    if reached := int((np.asarray(numbers)[:count, row][ran] > place).sum()):
                        counter.labels(place + 1).inc(reached)
        else:
            self._prompt_tokens.inc(len(job.request.prompt))
            self._reused.inc(job.reused)
        if job.finish_reason is not None:
            self._texts.labels(job.finish_reason).inc()

    def failed(self) -> None:
        self._failures.inc()
