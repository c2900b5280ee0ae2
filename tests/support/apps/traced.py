"""The shop, instrumented by OpenTelemetry; its spans are written down beside the ledger."""

from __future__ import annotations

import os
from collections.abc import Sequence

import redis
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from examples.observability.tracing import watch
from support.apps.build import build_app

SPANS = "spans"


class Collecting(InMemorySpanExporter):
    """What lies in the memory of a pool's process, other processes can read as well."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with redis.Redis.from_url(os.environ["LEDGER_URL"]) as client:
            client.rpush(SPANS, *(span.to_json(indent=None) for span in spans))
        return super().export(spans)


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Collecting()))
CeleryInstrumentor().instrument(tracer_provider=provider)
watch(tracer_provider=provider)
app = build_app(os.environ)


@app.task(name="traced.sends", shared=False)
def sends(job: str, task: str = "shop.note") -> None:
    """Publish a job from within the span of this one."""
    app.tasks[task].delay(job)
